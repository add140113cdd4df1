"""``metadata``: names and attributes of very many tiny files through a mount, against EROFS and squashfs in the kernel.

Each command runs on a new mount, whose caches of names and attributes are empty; the images are in the page cache. The
file systems take turns, and the ratio is the median over the rounds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import data
from figures import Figure, Report, paired_ratio, progress, seconds
from file_systems import FFFS, FILE_BACKED, SQUASHFS_FLAGS, FileSystem, Image

LIST, WALK, LONG = "find -type f", "find -size, a stat each", "ls -lR"
COMMANDS = {
    LIST: lambda root: ("find", root, "-type", "f"),
    WALK: lambda root: ("find", root, "-size", "-2"),
    LONG: lambda root: ("ls", "-lR", root),
}
OURS, AUTO, KERNEL = "fffs", "fffs, readdirplus=auto", "fffs, kernel"
EROFS, SQUASHFS = "erofs", "squashfs"
GOALS = {LIST: 3.0, WALK: 1.2, LONG: 1.2}


def _folder(scratch: Path, folders: int, files: int) -> Path:
    def make(folder: Path) -> None:
        for k in range(folders):
            progress(f"making {folder.name}: {k:,} of {folders:,} folders")
            below = folder / f"{k:04}"
            below.mkdir(parents=True)
            for i in range(files):
                (below / f"{i:07}.txt").write_bytes(b"0123456789abcdef")

    return data.kept(scratch / f"tiny-{folders}x{files}", make)


def _systems(folder: Path) -> list[FileSystem]:
    packed = Image(folder, "ffr", (*FFFS, "pack", "--quiet", str(folder)), ()).made()
    found = [
        FileSystem(OURS, packed, (*FFFS, "mount"), (*FFFS, "umount")),
        FileSystem(AUTO, packed, (*FFFS, "mount", "-o", "readdirplus=auto"), (*FFFS, "umount")),
    ]
    aligned = Image(folder, "aligned.ffr", (*FFFS, "pack", "--quiet", "--align", str(folder)), ()).made()
    found.append(FileSystem(KERNEL, aligned, (*FFFS, "mount", "-o", "kernel,verify=off"), (*FFFS, "umount")))
    if shutil.which("mkfs.erofs"):
        image = Image(folder, "erofs", ("mkfs.erofs", "--quiet"), (str(folder),)).made()
        found.append(FileSystem(EROFS, image, FILE_BACKED))
    if shutil.which("mksquashfs"):
        image = Image(folder, "squashfs", ("mksquashfs", str(folder)), SQUASHFS_FLAGS).made()
        found.append(FileSystem(SQUASHFS, image, ("mount", "-t", "squashfs", "-o", "loop,ro")))
    return found


def _time(system: FileSystem, command: Callable[[str], tuple[str, ...]], lines: int, scratch: Path) -> float:
    with tempfile.TemporaryDirectory(dir=scratch) as target, system.mounted(Path(target)) as root:
        system.warm()
        found = []
        taken = seconds(lambda: found.append(subprocess.run(command(str(root)), capture_output=True, check=True)))
        if found[0].stdout.count(b"\n") < lines:
            raise RuntimeError(f"{system.name}: too few lines")
    return taken


def _measure(report: Report, scratch: Path, folders: int, files: int, rounds: int) -> None:
    systems = _systems(_folder(scratch, folders, files))
    shape = f"{folders:,} x {files:,} files"
    for what, command in COMMANDS.items():
        taken: dict[str, list[float]] = {system.name: [] for system in systems}
        for k in range(rounds):
            for system in systems:
                progress(f"{shape}: {what}: round {k + 1} of {rounds}: {system.name}")
                taken[system.name].append(_time(system, command, folders * files, scratch))
        progress("")
        for name in (OURS, AUTO, KERNEL, SQUASHFS):
            if name not in taken:
                continue
            best = 1e3 * min(taken[name])
            if EROFS not in taken:
                report.add(Figure("metadata", f"{shape}: {what}: {name}", best, "ms"))
                continue
            ratio = paired_ratio(taken[name], taken[EROFS])
            goal = GOALS[what] if name in (OURS, KERNEL) else None
            report.add(
                Figure(
                    "metadata",
                    f"{shape}: {what}: {name}",
                    best,
                    "ms",
                    1e3 * min(taken[EROFS]),
                    EROFS,
                    ratio,
                    goal,
                    True,
                )
            )


def run(report: Report, scratch: Path, quick: bool) -> None:
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        report.skip("metadata", "it needs root and /dev/fuse")
        return
    rounds = 3 if quick else 5
    _measure(report, scratch, 100, 1000, rounds)
    _measure(report, scratch, 1, 100_000, rounds)
    if not quick:
        _measure(report, scratch, 1000, 1000, rounds)
        _measure(report, scratch, 1, 1_000_000, rounds)
