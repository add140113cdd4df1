"""``pack``: a folder of 10,000 files into one file, against ``tar cf`` followed by ``sync`` of that file."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import data
import page_cache
from figures import Figure, Report, paired_ratio, progress, seconds


def _pack(folder: Path, output: Path) -> None:
    subprocess.run([sys.executable, "-m", "fffs", "pack", "--quiet", folder, f"{output}.ffr"], check=True)


def _tar(folder: Path, output: Path) -> None:
    subprocess.run(["tar", "cf", output, "-C", folder, "."], check=True)
    subprocess.run(["sync", output], check=True)


def run(report: Report, scratch: Path, quick: bool) -> None:
    count, rounds = (1_000, 5) if quick else (10_000, 9)
    folder = data.photo_folder(scratch, count)
    files = [path for path in folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    times: dict[str, list[float]] = {"fffs": [], "tar": []}
    with tempfile.TemporaryDirectory(dir=scratch) as outputs:
        for k in range(rounds):
            progress(f"packing: round {k + 1} of {rounds}")
            # The one that comes first changes: neither has the quieter disk.
            order = [("fffs", _pack), ("tar", _tar)]
            for name, run_it in order if k % 2 == 0 else reversed(order):
                for path in files:
                    page_cache.warm(path)
                output = Path(outputs, "packed")
                os.sync()
                times[name].append(seconds(lambda run_it=run_it, output=output: run_it(folder, output)))
                for left in Path(outputs).iterdir():
                    left.unlink()
    progress("")
    mine, theirs = (size / 1e6 / statistics.median(times[name]) for name in ("fffs", "tar"))
    what = f"{count:,} files of 112 KiB, durably"
    report.add(Figure("pack", what, mine, "MB/s", theirs, "tar + sync", paired_ratio(times["tar"], times["fffs"]), 1.0))
