"""The file systems that ``mount`` compares: how the image of each is made, mounted, warmed and unmounted."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import data
import numpy as np
import page_cache
from figures import progress

DEBIAN = {"mksquashfs": "squashfs-tools", "mkfs.erofs": "erofs-utils", "squashfuse_ll": "squashfuse"}
RATARMOUNT = Path("ratarmount/bin/ratarmount")  # in the scratch folder
# Uncompressed, as record files are; EROFS compresses only when asked to.
SQUASHFS_FLAGS = ("-noI", "-noD", "-noF", "-noX", "-noappend", "-no-progress", "-quiet")
FFFS = (sys.executable, "-m", "fffs")
LARGE = "large.bin"
# For the contents of the files, read once from the disk and once more through the mount.
MEMORY = 5 << 30


@dataclass(frozen=True)
class FileSystem:
    """One way to get at the files. ``command`` mounts ``image`` on the folder that is its last argument."""

    name: str
    image: Path
    command: tuple[str, ...]
    unmount: tuple[str, ...] = ("umount",)

    @contextmanager
    def mounted(self, target: Path) -> Iterator[Path]:
        """Where the files are: a new mount, which has nothing in its own caches."""
        if not self.command:
            yield self.image
            return
        is_mounted = False
        try:
            with _uninterrupted():
                _run(*self.command, str(self.image), str(target))
                is_mounted = True
            yield target
        finally:
            if is_mounted:
                with _uninterrupted():
                    _run(*self.unmount, str(target))

    def warm(self) -> None:
        """Put what this file system reads into the page cache: the image, or each file of the folder."""
        if self.image.is_dir():
            for path in self.image.rglob("*"):
                if path.is_file():
                    page_cache.warm(path)
            forget_names()
        else:
            page_cache.warm(self.image)


def forget_names() -> None:
    """Drop names and attributes that the kernel keeps. It keeps what is read of files that are in the page cache."""
    Path("/proc/sys/vm/drop_caches").write_text("2\n")


def forget_contents() -> None:
    """Drop what the kernel keeps of all files on this machine. It keeps names and attributes."""
    os.sync()
    page_cache.have_memory(MEMORY)
    Path("/proc/sys/vm/drop_caches").write_text("1\n")


def _run(*command: str) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """An interrupt waits for the end, also of the programs that are started: who else would unmount?

    They inherit what is blocked. Here that is not enough: numpy has threads which take the signal all the same.
    """
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


# ---------------------------------------------------------------- installing


def install(scratch: Path) -> None:
    """What of the compared programs is missing: Debian's packages, and ratarmount in an environment of its own."""
    packages = [package for program, package in DEBIAN.items() if shutil.which(program) is None]
    if packages:
        _run("apt-get", "install", "--yes", "--no-install-recommends", *packages)
    if not (scratch / RATARMOUNT).exists():
        _run(sys.executable, "-m", "venv", "--clear", str(scratch / "ratarmount"))
        _run(str(scratch / "ratarmount/bin/pip"), "install", "--quiet", "ratarmount")


# ---------------------------------------------------------------- images


def make_folder(scratch: Path, count: int, large: int) -> Path:
    """The folder that all of them show: ``count`` files of 112 KiB on average, and a large one."""
    folder = scratch / f"mount-{count}-{large >> 20}"
    folder.mkdir(exist_ok=True)
    data.photo_folder(folder, count)

    def make(path: Path) -> None:
        generator = np.random.default_rng(2)
        with path.open("wb") as file:
            for _ in range(0, large, 1 << 24):
                file.write(generator.bytes(1 << 24))

    data.kept(folder / LARGE, make)
    return folder


def available(scratch: Path, folder: Path) -> tuple[list[FileSystem], dict[str, str]]:
    """Those whose programs are here, with their images made; and what the others miss."""
    squashfs = _Image(folder, "squashfs", ("mksquashfs", str(folder)), SQUASHFS_FLAGS)
    erofs = _Image(folder, "erofs", ("mkfs.erofs", "--quiet"), (str(folder),))
    tar = _Image(folder, "tar", ("tar", "-C", str(folder), "-cf"), (".",))
    ratarmount = str(scratch / RATARMOUNT)
    indexed = (ratarmount, "--index-file", f"{tar.path}-index")
    candidates = [
        ("squashfs, kernel", squashfs, "mksquashfs", ("mount", "-t", "squashfs", "-o", "loop,ro")),
        ("erofs, kernel", erofs, "mkfs.erofs", ("mount", "-t", "erofs", "-o", "loop,ro")),
        ("squashfuse_ll", squashfs, "squashfuse_ll", ("squashfuse_ll",)),
        ("ratarmount", tar, ratarmount, indexed),
    ]
    found, missing = [FileSystem("ext4", folder, ())], {}
    for name, image, program, command in candidates:
        if shutil.which(program) and shutil.which(image.before[0]):
            found.append(FileSystem(name, image.made(), command))
        else:
            missing[name] = f"{Path(program).name} is not installed; --install does it"
    packed = _Image(folder, "ffr", (*FFFS, "pack", "--quiet", str(folder)), ()).made()
    for fast, verify in itertools.product(("on", "off"), repeat=2):
        options = f"fastpath={fast},verify={verify}"
        found.append(FileSystem(f"fffs, {options}", packed, (*FFFS, "mount", "-o", options), (*FFFS, "umount")))
    return found, missing


@dataclass(frozen=True)
class _Image:
    """A file that is made of a folder by a command, whose arguments before and after the file's name these are."""

    folder: Path
    suffix: str
    before: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def path(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.{self.suffix}")

    def made(self) -> Path:
        progress(f"making {self.path.name}")
        return data.kept(self.path, lambda path: _run(*self.before, str(path), *self.after))


def bytes_from_disk(path: Path) -> int:
    """How much has been read from the disk that path is on, by anybody."""
    device = os.stat(path).st_dev
    fields = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat").read_text().split()
    return int(fields[2]) * 512
