"""``pack``: a folder of 10,000 files into one file, against ``tar cf`` followed by ``sync`` of that file."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import data
import page_cache
from figures import Figure, Report, in_turns, paired_ratio


def _pack(folder: Path, output: Path) -> None:
    subprocess.run([sys.executable, "-m", "fffs", "pack", "--quiet", folder, f"{output}.ffr"], check=True)


def _tar(folder: Path, output: Path) -> None:
    subprocess.run(["tar", "cf", output, "-C", folder, "."], check=True)
    subprocess.run(["sync", output], check=True)


def run(report: Report, scratch: Path, quick: bool) -> None:
    count, rounds = (1_000, 5) if quick else (10_000, 7)
    folder = data.photo_folder(scratch, count)
    files = [path for path in folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    with tempfile.TemporaryDirectory(dir=scratch) as outputs:
        output = Path(outputs, "packed")

        def prepare() -> None:
            for left in Path(outputs).iterdir():
                left.unlink()
            for path in files:
                page_cache.warm(path)
            os.sync()
            page_cache.have_memory(3 * size)

        taken = in_turns(partial(_pack, folder, output), partial(_tar, folder, output), prepare, "packing", rounds)
    rates = [size / 1e6 / statistics.median(times) for times in taken]
    what = f"{count:,} files of 112 KiB, durably"
    report.add(Figure("pack", what, rates[0], "MB/s", rates[1], "tar + sync", paired_ratio(*reversed(taken)), 1.0))
