"""``convert``: converting record files, against ``cp`` of the same bytes, both followed by ``sync``."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import data
import page_cache
from figures import Figure, Report, in_turns, paired_ratio

TARGETS = {"ffrecord": "to.ffr", "tfrecord": "to.tfrecord", "bag": "to.bag"}


def _convert(source: Path, output: Path) -> None:
    subprocess.run([sys.executable, "-m", "fffs", "convert", "--quiet", source, output], check=True)
    subprocess.run(["sync", output], check=True)


def _copy(source: Path, output: Path) -> None:
    # Reflinks would copy nothing.
    subprocess.run(["cp", "--reflink=never", source, output], check=True)
    subprocess.run(["sync", output], check=True)


def _measure(report: Report, source: Path, folder: Path, what: str, name: str, rounds: int) -> None:
    output = folder / name

    def prepare() -> None:
        output.unlink(missing_ok=True)
        page_cache.warm(source)
        subprocess.run(["sync"], check=True)
        page_cache.have_memory(3 * source.stat().st_size)

    ours, theirs = partial(_convert, source, output), partial(_copy, source, output)
    taken = in_turns(ours, theirs, prepare, f"converting {what}", rounds)
    output.unlink()
    rates = [source.stat().st_size / 1e6 / statistics.median(times) for times in taken]
    report.add(Figure("convert", what, rates[0], "MB/s", rates[1], "cp + sync", paired_ratio(*reversed(taken)), 0.7))


def run(report: Report, scratch: Path, quick: bool) -> None:
    count, rounds = 10_000, 3 if quick else 5
    ffrecord = data.equal_records(scratch, count, 100_000)
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        for form, name in TARGETS.items():
            _measure(report, ffrecord, Path(folder), f"{count:,} of 100 KB to {form}", name, rounds)
        for form in ("tfrecord", "bag"):
            source = Path(folder, f"source.{form}")
            _convert(ffrecord, source)
            _measure(report, source, Path(folder), f"{count:,} of 100 KB from {form}", "to.ffr", rounds)
            source.unlink()
