"""``read``: batches from the page cache, against the floor (floor.c) with the same records in the same order."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import data
import numpy as np
import page_cache
from figures import Figure, Report, paired_ratio, progress, seconds
from floor import Floor

from fffs import FileReader
from fffs.native import engine, lib

BATCH, SMALL_BATCH = 128, 1024


def _interleaved(path: Path, rounds: int, *runs: Callable[[], object]) -> list[list[float]]:
    """Return the seconds of each run, in turns. Rounds in which something came from the disk are repeated."""
    page_cache.warm(path)
    for run in runs:
        run()
    taken: list[list[float]] = [[] for _ in runs]
    disturbed = 0
    while len(taken[0]) < rounds:
        before = page_cache.bytes_from_disk()
        times = [seconds(run) for run in runs]
        if page_cache.bytes_from_disk() != before:
            disturbed += 1
            if disturbed > rounds:
                raise RuntimeError(f"{path}: it does not stay in the page cache; is there enough memory?")
            page_cache.warm(path)
            continue
        for list_of_times, time in zip(taken, times, strict=True):
            list_of_times.append(time)
    return taken


class _Times(NamedTuple):
    """Seconds: medians, and the best of fffs; and the median ratio of pairs."""

    ours: float
    floor: float
    best: float
    ratio: float

    @classmethod
    def of(cls, ours: list[float], floor: list[float]) -> _Times:
        return cls(statistics.median(ours), statistics.median(floor), min(ours), paired_ratio(floor, ours))


class _Bench:
    """Reads random batches of one file with fffs and with the floor."""

    def __init__(self, path: Path, batch: int, batches: int, scratch: Path, rounds: int) -> None:
        self.path, self.rounds = path, rounds
        self.readers = {check: FileReader(path, check_data=check) for check in (True, False)}
        self.floor = Floor(self.readers[True], scratch)
        reader = self.readers[True]
        self.numbers = np.random.default_rng(1).integers(0, reader.n, batch * batches)
        self.batches = [part.tolist() for part in np.split(self.numbers, batches)]
        self.bytes = int(np.diff(reader.get_offsets())[self.numbers].sum())

    def compare(self, threads: int, check: bool = True) -> _Times:
        """Measure all batches, in turns with the floor."""
        default = lib.fffs_engine_threads()
        lib.fffs_engine_set_threads(threads)
        read = self.readers[check].read

        def ours() -> None:
            for batch in self.batches:
                read(batch)

        try:
            mine, floor = _interleaved(
                self.path, self.rounds, ours, lambda: self.floor.read(self.numbers, threads, check)
            )
        finally:
            lib.fffs_engine_set_threads(default)
        return _Times.of(mine, floor)

    def one_by_one(self, count: int) -> _Times:
        """Measure single records, in turns with one thread of the floor."""
        read_one, numbers = self.readers[True].read_one, self.numbers[:count]
        listed = numbers.tolist()

        def ours() -> None:
            for number in listed:
                read_one(number)

        mine, floor = _interleaved(self.path, self.rounds, ours, lambda: self.floor.read(numbers, 1))
        return _Times.of(mine, floor)

    def close(self) -> None:
        self.floor.close()
        for reader in self.readers.values():
            reader.close()


def run(report: Report, scratch: Path, quick: bool) -> None:
    engine.ready()  # FFFS_THREADS counts from here on
    threads = lib.fffs_engine_threads()
    rounds = 5 if quick else 21
    large = _Bench(data.large_records(scratch, 2_000 if quick else 10_000), BATCH, 32, scratch, rounds)
    for number, check, goal in dict.fromkeys([(threads, True, 0.8), (1, True, 0.8), (threads, False, None)]):
        progress("reading records of 112 KiB")
        times = large.compare(number, check)
        progress("")
        what = f"112 KiB, batches of {BATCH}{'' if check else ', unverified'}, {_threads(number)}"
        ours, floor = large.bytes / 1e6 / times.ours, large.bytes / 1e6 / times.floor
        report.add(Figure("read", what, ours, "MB/s", floor, "floor", times.ratio, goal))
    report.add(_single("112 KiB, read_one", 1000, large.one_by_one(1000)))
    large.close()

    small = _Bench(data.small_records(scratch, 100_000), SMALL_BATCH, 100, scratch, rounds)
    count = len(small.numbers)
    for number, check in dict.fromkeys([(threads, True), (1, True), (threads, False)]):
        progress("reading records of 1 KiB")
        times = small.compare(number, check)
        progress("")
        what = f"1 KiB, batches of {SMALL_BATCH}{'' if check else ', unverified'}, {_threads(number)}"
        ours, floor = count / times.ours, count / times.floor
        report.add(Figure("read", what, ours, "records/s", floor, "floor", times.ratio))
        if number == threads and check:
            report.add(Figure("read", f"{what}: best", count / times.best, "records/s", goal=1.5e6))
    report.add(_single("1 KiB, read_one", 20_000, small.one_by_one(20_000)))
    small.close()


def _single(what: str, count: int, times: _Times) -> Figure:
    ours, floor = count / times.ours, count / times.floor
    return Figure("read", what, ours, "records/s", floor, "floor, 1 thread", times.ratio)


def _threads(number: int) -> str:
    return "1 thread" if number == 1 else f"{number} threads"
