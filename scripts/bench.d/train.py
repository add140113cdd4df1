"""``train``: samples per second in training processes that each have a loader with workers.

The processes are independent, like the ranks of one machine, and read disjoint parts of one random order in batches of
128. Nothing is decoded; every page of every batch is read. Each process first loads one epoch, so that neither the
start of workers nor the opening of files is measured. Then the page cache is filled (hot) or emptied (cold). The time
extends from the first start of the second epoch to the last end.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import cold
import data as kept_data
import file_systems
import numpy as np
import page_cache
from figures import Figure, Report, progress
from loaders import LOADERS, Batches, Data, consume, make_shards

BATCH = 128
OURS, FIO = "fffs", "fio"
FFFS = (sys.executable, "-m", "fffs")
LARGE, SMALL = "112 KiB", "8 KiB"


# ---------------------------------------------------------------- one process


def _train(name: str, data: Data, batches: Batches, workers: int, gate: Any, results: Any) -> None:
    """In a process: load an epoch to warm up, and another when all are ready. Puts (begin, end, samples)."""
    try:
        _train_two_epochs(name, data, batches, workers, gate, results)
    except BaseException:
        gate.abort()  # ends the waits for this process
        raise


def _train_two_epochs(name: str, data: Data, batches: Batches, workers: int, gate: Any, results: Any) -> None:
    loader = LOADERS[name](data, batches, workers)
    for batch in loader:
        consume(batch)
    gate.wait()  # now the parent fills or empties the page cache
    gate.wait()
    begin = time.monotonic()
    samples = sum(map(consume, loader))
    results.put((begin, time.monotonic(), samples))
    gate.wait()  # no workers end before all processes are done


def _measure(name: str, data: Data, parts: list[Batches], workers: int, hot: bool) -> float:
    """Return the samples per second of all processes together."""
    context = multiprocessing.get_context("spawn")
    gate, results = context.Barrier(len(parts) + 1), context.Queue()
    shards = [replace(data, shards=data.shards[k :: len(parts)]) for k in range(len(parts))]
    processes = [
        context.Process(target=_train, args=(name, mine, part, workers, gate, results))
        for mine, part in zip(shards, parts, strict=True)
    ]
    for process in processes:
        process.start()
    try:
        gate.wait(600)
        _prepare(name, data, hot)
        gate.wait(60)
        found = [results.get(timeout=600) for _ in processes]
        gate.wait(60)
    except BaseException:
        gate.abort()
        raise
    finally:
        for process in processes:
            process.join(30)
            process.kill()
            process.join()
    begins, ends, samples = zip(*found, strict=True)
    return float(sum(samples) / (max(ends) - min(begins)))


def _fio(data: Data) -> float:
    """Return the rate of fio, as samples of the mean size per second."""
    return cold._fio(data.pack, direct=0) * 1e6 * len(data.names) / data.pack.stat().st_size


def _prepare(name: str, data: Data, hot: bool) -> None:
    """Read the files of this loader into the page cache, or drop them from it."""
    if name == "WebDataset":
        paths = list(data.shards)
    elif name == "small files":
        paths = [data.folder / file for file in data.names]
    else:
        paths = [data.pack]
    if not hot and name == "mount":
        for file in data.names:
            page_cache.drop(data.mounted / file)  # type: ignore[operator]
    for path in paths:
        (page_cache.warm if hot else page_cache.drop)(path)
    if not hot and name in ("mount", "small files") and os.geteuid() == 0:
        file_systems.forget_names()


# ---------------------------------------------------------------- data


def _files(scratch: Path, size: str, count: int) -> Path:
    if size == LARGE:
        return kept_data.photo_folder(scratch, count)

    def make(folder: Path) -> None:
        content = np.random.default_rng(8).bytes(1 << 20)
        for k in range(count):
            subfolder = folder / f"{k // 1000:04}"
            if k % 1000 == 0:
                subfolder.mkdir(parents=True)
            start = k * 61 % ((1 << 20) - 8192)
            (subfolder / f"{k:06}.jpg").write_bytes(content[start : start + 8192])

    return kept_data.kept(scratch / f"tiny-{count}", make)


def _data(scratch: Path, size: str, count: int, with_shards: bool) -> Data:
    folder = _files(scratch, size, count)
    names = tuple(sorted(str(path.relative_to(folder)) for path in folder.rglob("*.jpg")))

    def pack(path: Path) -> None:
        subprocess.run([*FFFS, "pack", "--quiet", folder, path], check=True)

    data = Data(folder, names, kept_data.kept(scratch / f"{folder.name}.ffr", pack))
    if with_shards:
        shards = kept_data.kept(scratch / f"{folder.name}-shards", lambda path: make_shards(path, data))
        data = replace(data, shards=tuple(sorted(shards.iterdir())))
    return data


@contextmanager
def _mounted(data: Data, can_mount: bool) -> Iterator[Data]:
    if not can_mount:
        yield data
        return
    with tempfile.TemporaryDirectory() as target:
        subprocess.run([*FFFS, "mount", "-o", "fastpath=on", data.pack, target], check=True)
        try:
            yield replace(data, mounted=Path(target))
        finally:
            subprocess.run([*FFFS, "umount", target], check=True)


def _parts(count: int, processes: int, repeats: int) -> list[Batches]:
    """Return the batches of each process: ``repeats`` random orders of all records, divided among the processes."""
    generator = np.random.default_rng(5)
    parts: list[Batches] = [[] for _ in range(processes)]
    for _ in range(repeats):
        order = generator.permutation(count).tolist()
        for k in range(processes):
            mine = order[k::processes]
            parts[k] += [mine[i : i + BATCH] for i in range(0, len(mine), BATCH)]
    return parts


# ---------------------------------------------------------------- the measure


def run(report: Report, scratch: Path, quick: bool) -> None:
    cores = len(os.sched_getaffinity(0))
    processes, workers = (2, max(cores // 2, 2)) if cores < 16 else (8, cores // 8)
    names = [name for name in LOADERS if name not in ("ffrecord", "WebDataset")]
    for name in ("WebDataset", "ffrecord"):
        if importlib.util.find_spec(name.lower()) is None:
            report.skip(f"train: {name}", "it is not installed")
        else:
            names.append(name)
    can_mount = os.path.exists("/dev/fuse") and importlib.util.find_spec("pyfuse3") is not None
    if not can_mount:
        report.skip("train: the mount", "it needs /dev/fuse and pyfuse3")
        names.remove("mount")
    counts = {LARGE: 2_000 if quick else 10_000, SMALL: 10_000 if quick else 100_000}
    for size, count in counts.items():
        with _mounted(_data(scratch, size, count, "WebDataset" in names), can_mount) as data:
            for hot in (True, False):
                parts = _parts(count, processes, (10 if size == LARGE else 8) if hot and quick else 4 if hot else 1)
                ways = [*names, FIO] if size == LARGE and not hot and shutil.which(FIO) else names
                rates = _rounds(ways, data, parts, workers, hot, 3 if quick else 7)
                _report(report, size, hot, rates)
    progress("")


def _rounds(
    names: list[str], data: Data, parts: list[Batches], workers: int, hot: bool, rounds: int
) -> dict[str, list[float]]:
    """Return the samples per second of each loader in each round. The loaders take turns."""
    rates: dict[str, list[float]] = {name: [] for name in names}
    for k in range(rounds):
        for name in names[k % len(names) :] + names[: k % len(names)]:
            progress(f"training, {data.folder.name}, {_state(hot)}: round {k + 1} of {rounds}: {name}")
            rates[name].append(_fio(data) if name == FIO else _measure(name, data, parts, workers, hot))
    progress("")
    return rates


def _goal(name: str, size: str, hot: bool) -> float | None:
    if hot:
        return 2.0 if name == "ffrecord" else None
    if size == LARGE:
        return 0.95 if name == FIO else None
    return 4.0 if name == "small files" else None


def _report(report: Report, size: str, hot: bool, rates: dict[str, list[float]]) -> None:
    """Add a figure for the comparison with each of the others, and one for the best of them."""

    def add(what: str, name: str, goal: float | None) -> None:
        ratio = statistics.median(a / b for a, b in zip(rates[OURS], rates[name], strict=True))
        mine, theirs = (statistics.median(rates[key]) for key in (OURS, name))
        report.add(Figure("train", f"{size}, {_state(hot)}{what}", mine, "samples/s", theirs, name, ratio, goal))

    others = [name for name in rates if name != OURS]
    for name in others:
        add(f" / {name}", name, _goal(name, size, hot))
    if hot:
        foreign = [name for name in others if not name.startswith(OURS)]
        best = max(foreign, key=lambda name: statistics.median(rates[name]))
        add(f" / best ({best})", best, 1.3)


def _state(hot: bool) -> str:
    return "hot" if hot else "cold"
