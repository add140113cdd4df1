"""``mount``: fffs's mount, against other read-only file systems with the same files.

Each measurement begins with a new mount, whose own caches of names, attributes and contents are empty, and with the
image in the page cache. A first read therefore measures the file system without the disk: in the kernel, a copy from
the pages of the image to those of the file, through the loop device; in user space, a read of the image and a reply to
the kernel. ext4 has only one cache, which is warm, so its first read shows the cost of reading alone. Re-reads come
from the mount's own pages. Before measures "from the disk", names and attributes are cached and contents are not.

Bytes that are read from the disk meanwhile are counted. If they are more than 1 % of the measured bytes, or less than
90 % in measures from the disk, the measurement is repeated, and marked if this does not help. The file systems take
turns in several rounds, of which the best counts.
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
# The measures of one mount, in order.
SESSIONS = ((FIRST, AGAIN), (LARGE,), (WALK,), (PARALLEL,))
COLD_SESSIONS = ((COLD,), (COLD_LARGE,), (COLD_PARALLEL,))
COLD_ROUNDS = 2  # because they take most of the time
READERS = 16

EROFS, SQUASHFS, SQUASHFUSE = "erofs, kernel", "squashfs, kernel", "squashfuse_ll"
EROFS_FILE, IN_KERNEL = "erofs, kernel, no loop", "fffs, kernel"
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
    (FIRST, IN_KERNEL, EROFS_FILE, 0.95),
    (LARGE, IN_KERNEL, EROFS_FILE, 0.95),
    (FIRST, IN_KERNEL, OURS, 3.0),
)

NOT_HOT, NOT_COLD = " (not hot)", " (not cold)"
TRIES = 3
FEW_BYTES = 4 << 20  # other programs may read so much meanwhile


@dataclass
class _Task:
    """The files to read: relative names in the order of reading, and sizes in bytes."""

    small: list[str]
    small_bytes: int
    large_bytes: int


@dataclass
class _Results:
    """Seconds of each round, and amounts, by measure and file system.

    The best round counts: other programs only make a round slower, and by different amounts for each file system.
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
        """Return a mark if in every round too many or too few bytes came from the disk. Good rounds sort first."""
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
        """Measure one mount of a file system. Repeats if too many or too few bytes came from the disk."""
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
        """Return seconds, the amount in the unit, and whether too many or too few bytes came from the disk."""
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
        """Read the files as most Python programs do."""
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
    """Print the rate of each file system, and its ratio to EROFS and squashfs, for each measure."""
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
    """Add all rates to the figures, for JSON and the chart, without printing them."""
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
