"""``cold``: batches from the disk, after the file was dropped from the page cache, against fio with io_uring."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import data
import numpy as np
import page_cache
from figures import Figure, Report, progress, seconds

from fffs import FileReader
from fffs.native import engine

BATCH = 128
GOAL = 0.97  # of fio, for one caller: plain, with prefetch, and without the page cache
ALONE, AHEAD, DIRECT = "1 caller", "1 caller, prefetching", "1 caller, past the page cache"
# Cloud disks are faster after a pause. fio takes a while to start, which is a pause; the others get one as well.
PAUSE = 1.0


def _ours(path: Path, backend: str, callers: int, ahead: bool = False, direct: bool = False) -> float:
    """Read each record once, in random order, in batches, with ``callers`` threads. Returns MB/s.

    ahead: prefetch each batch before reading the previous one. direct: read without the page cache, if possible.
    """
    engine.select(backend)
    with FileReader(path) as reader:
        reader.use_direct(direct)
        order = np.random.default_rng(3).permutation(reader.n)
        batches = [order[k : k + BATCH].tolist() for k in range(0, reader.n, BATCH)]
        page_cache.drop(path)
        before = page_cache.bytes_from_disk()

        def read() -> None:
            with ThreadPoolExecutor(callers) as pool:
                for done in [pool.submit(_read_all, reader, batches[k::callers], ahead) for k in range(callers)]:
                    done.result()

        needed = seconds(read)
    size = path.stat().st_size
    if page_cache.bytes_from_disk() - before < 0.9 * size:
        raise RuntimeError(f"{path}: parts of it were still in the page cache")
    return size / 1e6 / needed


def _read_all(reader: FileReader, batches: list[list[int]], ahead: bool) -> None:
    for batch, following in zip(batches, [*batches[1:], []], strict=True):
        if ahead:
            reader.prefetch(following)
        reader.read(batch)


def _fio(path: Path, direct: int) -> float:
    """Let fio read each block once, in random order. Returns MB/s."""
    page_cache.drop(path)
    size = path.stat().st_size
    result = subprocess.run(
        [
            "fio",
            "--name=floor",
            f"--filename={path}",
            "--ioengine=io_uring",
            "--iodepth=64",
            "--rw=randread",
            "--bs=112k",
            f"--size={size // data.MEAN * data.MEAN}",
            f"--direct={direct}",
            "--invalidate=1",
            "--readonly",
            "--thread",
            "--randseed=3",
            "--output-format=json",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    # Older versions write warnings before the document.
    job = json.loads(result.stdout[result.stdout.index("{") :])["jobs"][0]["read"]
    return float(job["io_bytes"] / 1e3 / job["runtime"])


def run(report: Report, scratch: Path, quick: bool) -> None:
    path = data.large_records(scratch, 2_000 if quick else 10_000)
    if shutil.which("fio") is None:
        report.skip("cold", "fio is not installed (apt-get install fio)")
        return
    default = engine.name()
    backends = [name for name in engine.NAMES if engine.select(name) == name]
    # With a single caller the disk is idle between two batches. It is never idle with fio, which knows its order
    # beforehand, with prefetching, or with two callers, as in a loader with two workers.
    programs = {
        f"{default}, {AHEAD}": partial(_ours, path, default, 1, ahead=True),
        f"{default}, {DIRECT}": partial(_ours, path, default, 1, direct=True),
        f"{default}, 2 callers": partial(_ours, path, default, 2),
        **{f"{name}, {ALONE}": partial(_ours, path, name, 1) for name in backends},
        **{f"fio {kind}": partial(_fio, path, direct) for direct, kind in enumerate(("buffered", "direct"))},
    }
    rates: dict[str, list[float]] = {name: [] for name in programs}
    rounds = 3 if quick else 15
    for k in range(rounds):
        progress(f"reading from the disk: round {k + 1} of {rounds}")
        turns = list(rates)
        for name in turns[k % len(turns) :] + turns[: k % len(turns)]:
            time.sleep(PAUSE)
            rates[name].append(programs[name]())
    progress("")
    engine.select(default)
    for name in list(rates)[:-2]:
        for kind in ("buffered", "direct"):
            floor = rates[f"fio {kind}"]
            ratio = statistics.median(a / b for a, b in zip(rates[name], floor, strict=True))
            what = f"112 KiB, batches of {BATCH}, {name} / fio {kind}"
            goal = GOAL if name in {f"{default}, {way}" for way in (ALONE, AHEAD, DIRECT)} else None
            ours, theirs = statistics.median(rates[name]), statistics.median(floor)
            report.add(Figure("cold", what, ours, "MB/s", theirs, f"fio, {kind}", ratio, goal))
