"""``mount``: fffs's mount against other read-only file systems that show the same files.

What is hot and what is not: each measurement begins with a new mount, so nothing is known of names, attributes and
contents in *its* caches; and the image that it reads from is in the page cache, put there right before. So a first read
of a file costs what the file system does, and no disk. For a file system in the kernel that is a copy from the image's
pages to its own, through the loop device; for one in user space a read of the image and a reply to the kernel. ext4
has only one cache, which is warm: its first read shows what reading costs. Re-reads come from each mount's own pages.
Where it says "from the disk", names and attributes have been looked at and no contents are in any cache.

Whatever is read from the disk meanwhile is counted. A measurement during which that was more than a hundredth of its
bytes, or less than nine tenths where all should come from there, is repeated, and marked when it does not get better.
Of several rounds, in which the file systems take turns, the best counts.
"""

from __future__ import annotations

import os
import random
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import file_systems
from figures import Figure, Report, progress, seconds
from file_systems import FileSystem

SOURCE = Path(__file__).with_name("client.c")
FIRST, AGAIN, LARGE, WALK, PARALLEL = "first read", "re-read", "sequential", "walk + stat", "16 readers"
PYTHON = "first read, Python"
COLD, COLD_LARGE, COLD_PARALLEL = "from the disk", "sequential, from the disk", "16 readers, from the disk"
UNITS = {FIRST: "files/s", AGAIN: "files/s", LARGE: "GB/s", WALK: "entries/s", PARALLEL: "files/s", PYTHON: "files/s"}
UNITS |= {COLD: "files/s", COLD_LARGE: "GB/s", COLD_PARALLEL: "files/s"}
FROM_DISK = {COLD, COLD_LARGE, COLD_PARALLEL}
# What is measured in one mount, one right after the other.
SESSIONS = ((FIRST, AGAIN), (LARGE,), (WALK,), (PARALLEL,))
COLD_SESSIONS = ((COLD,), (COLD_LARGE,), (COLD_PARALLEL,))
COLD_ROUNDS = 2  # a disk takes most of the time
READERS = 16

EROFS, SQUASHFS, SQUASHFUSE = "erofs, kernel", "squashfs, kernel", "squashfuse_ll"
OURS, UNVERIFIED = "fffs, fastpath=on,verify=on", "fffs, fastpath=on,verify=off"
GOALS = (
    (FIRST, OURS, EROFS, 1.0),
    (FIRST, OURS, SQUASHFS, 2.0),
    (AGAIN, OURS, EROFS, 0.95),
    (LARGE, OURS, SQUASHFS, 1.8),
    (WALK, OURS, SQUASHFS, 1.0),
    (PARALLEL, OURS, SQUASHFUSE, 1.5),
    (COLD, OURS, EROFS, 1.0),
    (COLD_LARGE, OURS, EROFS, 1.0),
    (COLD_PARALLEL, OURS, EROFS, 1.0),
    (FIRST, OURS, UNVERIFIED, 0.88),
    (LARGE, OURS, UNVERIFIED, None),
)

NOT_HOT, NOT_COLD = " (not hot)", " (not cold)"
TRIES = 3
FEW_BYTES = 4 << 20  # that other programs may read meanwhile


@dataclass
class _Task:
    """What is read: relative names in the order of reading, and how many bytes they have."""

    small: list[str]
    small_bytes: int
    large_bytes: int


@dataclass
class _Results:
    """Seconds of each round, and amounts, by measure and file system.

    The best round counts: other programs on the machine only ever make one slower, and mounts have threads in several
    places, in the kernel and out of it, which all suffer from that differently.
    """

    taken: dict[tuple[str, str], list[tuple[bool, float]]] = field(default_factory=dict)
    amount: dict[tuple[str, str], float] = field(default_factory=dict)

    def add(self, measure: str, name: str, time: float, amount: float, doubtful: bool) -> None:
        self.taken.setdefault((measure, name), []).append((doubtful, time))
        self.amount[measure, name] = amount

    def rate(self, measure: str, name: str) -> float:
        return self.amount[measure, name] / min(self.taken[measure, name])[1]

    def ratio(self, measure: str, name: str, baseline: str) -> float:
        return self.rate(measure, name) / self.rate(measure, baseline)

    def mark(self, measure: str, name: str) -> str:
        """A remark where in every round too much or too little came from the disk: rounds that were good come first."""
        if not min(self.taken[measure, name])[0]:
            return ""
        return NOT_COLD if measure in FROM_DISK else NOT_HOT

    def names(self, measure: str) -> list[str]:
        return [name for other, name in self.taken if other == measure]


class _Bench:
    def __init__(self, folder: Path, scratch: Path, task: _Task) -> None:
        self._task, self._scratch = task, scratch
        self.results = _Results()
        self._client = scratch / "client"
        subprocess.run(["cc", "-std=c11", "-O2", str(SOURCE), "-o", str(self._client)], check=True)
        self._folder = folder

    def measure(self, system: FileSystem, measures: Sequence[str]) -> None:
        """One session of one file system; again when the disk was busy."""
        for left in reversed(range(TRIES)):
            with tempfile.TemporaryDirectory(dir=self._scratch) as target, system.mounted(Path(target)) as root:
                if FROM_DISK.isdisjoint(measures):
                    system.warm()
                else:
                    self._run("walk", str(root))
                    file_systems.forget_contents()
                done = [self._one(measure, root) for measure in measures]
            if not any(doubtful for *_, doubtful in done) or left == 0:
                break
        for measure, (time, amount, doubtful) in zip(measures, done, strict=True):
            self.results.add(measure, system.name, time, amount, doubtful)

    def _one(self, measure: str, root: Path) -> tuple[float, float, bool]:
        """Seconds, the amount in the measure's unit, and whether too much, or too little, came from the disk."""
        before = file_systems.bytes_from_disk(self._folder)
        large = measure in (LARGE, COLD_LARGE)
        expected = self._task.large_bytes if large else self._task.small_bytes
        if measure == WALK:
            time, amount, got = self._run("walk", str(root))
            expected += self._task.large_bytes
        elif measure == PYTHON:
            time, amount, got = self._in_python(root)
        else:
            time, amount, got = self._read(measure, root)
        if got != expected:
            raise RuntimeError(f"{root}: {got} bytes, not {expected}")
        from_disk = file_systems.bytes_from_disk(self._folder) - before
        if measure in FROM_DISK:
            doubtful = from_disk < expected * 9 // 10
        else:
            doubtful = from_disk > max(FEW_BYTES, 0 if measure == WALK else expected // 100)
        return time, got / 1e9 if large else amount, doubtful

    def _read(self, measure: str, root: Path) -> tuple[float, float, int]:
        names = [file_systems.LARGE] if measure in (LARGE, COLD_LARGE) else self._task.small
        with tempfile.NamedTemporaryFile("w", dir=self._scratch) as listed:
            listed.writelines(f"{root}/{name}\n" for name in names)
            listed.flush()
            return self._run("read", listed.name, str(READERS if measure in (PARALLEL, COLD_PARALLEL) else 1))

    def _run(self, *arguments: str) -> tuple[float, float, int]:
        done = subprocess.run([self._client, *arguments], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(arguments)}: {done.stderr.strip()}")
        time, amount, got = done.stdout.split()
        return float(time), float(amount), int(got)

    def _in_python(self, root: Path) -> tuple[float, float, int]:
        """The way most programs do it."""
        paths = [f"{root}/{name}" for name in self._task.small]
        got = 0

        def read() -> None:
            nonlocal got
            for path in paths:
                with open(path, "rb") as file:
                    got += len(file.read())

        return seconds(read), len(paths), got


# ---------------------------------------------------------------- showing


def _show(results: _Results) -> None:
    """A block for each measure: the rate of each file system, and how much faster than EROFS and squashfs that is."""
    for measure, unit in UNITS.items():
        names = results.names(measure)
        print(f"{measure + ', ' + unit:36}{'':>10}{'x erofs':>10}{'x squashfs':>12}")
        for name in names:
            rate = results.rate(measure, name)
            shown = f"{rate:,.2f}" if unit == "GB/s" else f"{rate:,.0f}"
            ratios = [
                f"{results.ratio(measure, name, other):.2f}" if other in names else "" for other in (EROFS, SQUASHFS)
            ]
            print(f"  {name:34}{shown:>10}{ratios[0]:>10}{ratios[1]:>12} {results.mark(measure, name)}".rstrip())
        print(flush=True)


def _judge(report: Report, results: _Results) -> None:
    for measure, ours, other, goal in GOALS:
        if other not in results.names(measure):
            report.skip(f"{measure}, against {other}", "it cannot be mounted here")
            continue
        rates = [results.rate(measure, name) for name in (ours, other)]
        ratio = results.ratio(measure, ours, other)
        what = f"{measure}, against {other.removeprefix('fffs, fastpath=on,')}"
        report.add(Figure("mount", what, rates[0], UNITS[measure], rates[1], other, ratio, goal))


def _keep(report: Report, results: _Results) -> None:
    """All rates, for JSON and the chart."""
    for measure, name in results.taken:
        baseline = EROFS if EROFS in results.names(measure) else None
        report.figures.append(
            Figure(
                "mount",
                f"{measure}: {name}{results.mark(measure, name)}",
                results.rate(measure, name),
                UNITS[measure],
                results.rate(measure, baseline) if baseline else None,
                baseline or "",
                results.ratio(measure, name, baseline) if baseline else None,
            )
        )


def _task(folder: Path) -> _Task:
    small = sorted(path for path in folder.rglob("*.jpg"))
    random.Random(5).shuffle(small)
    sizes = [path.stat().st_size for path in small]
    names = [str(path.relative_to(folder)) for path in small]
    return _Task(names, sum(sizes), (folder / file_systems.LARGE).stat().st_size)


def _can_be_mounted(report: Report, system: FileSystem, scratch: Path) -> bool:
    try:
        with tempfile.TemporaryDirectory(dir=scratch) as target, system.mounted(Path(target)):
            return True
    except RuntimeError as error:
        report.skip(system.name, str(error))
        return False


def run(report: Report, scratch: Path, quick: bool) -> None:
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        report.skip("mount", "it needs root and /dev/fuse")
        return
    folder = file_systems.make_folder(scratch, *((2_000, 256 << 20) if quick else (10_000, 2 << 30)))
    systems, missing = file_systems.available(scratch, folder)
    systems = [system for system in systems if _can_be_mounted(report, system, scratch)]
    for name, why in missing.items():
        report.skip(name, why)
    bench = _Bench(folder, scratch, _task(folder))
    rounds = 3 if quick else 5
    for k in range(rounds):
        for measures in (*SESSIONS, *(COLD_SESSIONS if k < COLD_ROUNDS else ()), *([(PYTHON,)] if k == 0 else [])):
            for system in systems:
                progress(f"round {k + 1} of {rounds}: {', '.join(measures)}: {system.name}")
                bench.measure(system, measures)
    progress("")
    _show(bench.results)
    _judge(report, bench.results)
    _keep(report, bench.results)
