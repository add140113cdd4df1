"""``convert``: record files into others, against ``cp`` of the same bytes, both followed by ``sync``."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import data
import page_cache
from figures import Figure, Report, paired_ratio, progress, seconds

TARGETS = {"ffrecord": "to.ffr", "tfrecord": "to.tfrecord", "bag": "to.bag"}


def _convert(source: Path, output: Path) -> None:
    subprocess.run([sys.executable, "-m", "fffs", "convert", "--quiet", source, output], check=True)
    subprocess.run(["sync", output], check=True)


def _copy(source: Path, output: Path) -> None:
    # Without reflinks, which copy nothing.
    subprocess.run(["cp", "--reflink=never", source, output], check=True)
    subprocess.run(["sync", output], check=True)


def _measure(report: Report, source: Path, folder: Path, what: str, name: str, rounds: int) -> None:
    size = source.stat().st_size
    times: dict[str, list[float]] = {"fffs": [], "cp": []}
    for k in range(rounds):
        progress(f"converting {what}: round {k + 1} of {rounds}")
        # The one that comes first changes: neither has the quieter disk.
        order = [("fffs", _convert), ("cp", _copy)]
        for tool, run_it in order if k % 2 == 0 else reversed(order):
            page_cache.warm(source)
            output = folder / name
            subprocess.run(["sync"], check=True)
            times[tool].append(seconds(lambda run_it=run_it, output=output: run_it(source, output)))
            output.unlink()
    progress("")
    mine, theirs = (size / 1e6 / statistics.median(times[tool]) for tool in ("fffs", "cp"))
    ratio = paired_ratio(times["cp"], times["fffs"])
    report.add(Figure("convert", what, mine, "MB/s", theirs, "cp + sync", ratio, 0.7))


def run(report: Report, scratch: Path, quick: bool) -> None:
    count, rounds = (10_000, 5) if quick else (20_000, 9)
    ffrecord = data.equal_records(scratch, count, 100_000)
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        for form, name in TARGETS.items():
            _measure(report, ffrecord, Path(folder), f"{count:,} of 100 KB to {form}", name, rounds)
        for form in ("tfrecord", "bag"):
            source = Path(folder, f"source.{form}")
            _convert(ffrecord, source)
            _measure(report, source, Path(folder), f"{count:,} of 100 KB from {form}", "to.ffr", rounds)
            source.unlink()
