"""``pack``: a folder into one file, against ``tar cf`` followed by ``sync`` of that file.

The folders have 10,000 files of 112 KiB, all cached, and 1,000,000 tiny files, all cached and nothing cached.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import data
import file_systems
import page_cache
from figures import Figure, Report, in_turns, paired_ratio


def _pack(folder: Path, output: Path) -> None:
    subprocess.run([sys.executable, "-m", "fffs", "pack", "--quiet", folder, f"{output}.ffr"], check=True)


def _tar(folder: Path, output: Path) -> None:
    subprocess.run(["tar", "cf", output, "-C", folder, "."], check=True)
    subprocess.run(["sync", output], check=True)


def _read_all(folder: Path) -> None:
    with subprocess.Popen(["tar", "cf", "-", "-C", folder, "."], stdout=subprocess.PIPE) as tar:
        assert tar.stdout
        while tar.stdout.read(1 << 20):
            pass


def _compare(
    folder: Path, scratch: Path, size: int, warm: Callable[[], None], rounds: int
) -> tuple[list[float], list[float]]:
    """Return the seconds per round of fffs and tar; warm prepares the caches before each."""
    with tempfile.TemporaryDirectory(dir=scratch) as outputs:
        output = Path(outputs, "packed")

        def prepare() -> None:
            for left in Path(outputs).iterdir():
                left.unlink()
            os.sync()
            page_cache.have_memory(3 * size)
            warm()

        return in_turns(partial(_pack, folder, output), partial(_tar, folder, output), prepare, "packing", rounds)


def _photos(report: Report, scratch: Path, count: int, rounds: int) -> None:
    folder = data.photo_folder(scratch, count)
    files = [path for path in folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)

    def warm() -> None:
        for path in files:
            page_cache.warm(path)

    taken = _compare(folder, scratch, size, warm, rounds)
    rates = [size / 1e6 / statistics.median(times) for times in taken]
    what = f"{count:,} files of 112 KiB, durably"
    report.add(Figure("pack", what, rates[0], "MB/s", rates[1], "tar + sync", paired_ratio(*reversed(taken)), 1.0))


def _tiny(report: Report, scratch: Path, folders: int, rounds: int, cold: bool) -> None:
    count, state = 1000 * folders, "nothing cached" if cold else "all cached"
    what = f"{count:,} files of 16 bytes, {state}, durably"
    if cold and os.geteuid() != 0:
        report.skip(f"pack, {what}", "only root may drop what is cached")
        return
    folder = data.tiny_folder(scratch, folders, 1000)
    warm = file_systems.forget_all if cold else partial(_read_all, folder)
    taken = _compare(folder, scratch, 1000 * count, warm, rounds)
    rates = [count / statistics.median(times) for times in taken]
    report.add(Figure("pack", what, rates[0], "files/s", rates[1], "tar + sync", paired_ratio(*reversed(taken)), 1.0))


def run(report: Report, scratch: Path, quick: bool) -> None:
    count, folders, rounds = (1_000, 20, 3) if quick else (10_000, 1_000, 7)
    _photos(report, scratch, count, rounds)
    for cold in (False, True):
        _tiny(report, scratch, folders, 1 if cold else 3, cold)  # a turn without caches takes a minute
