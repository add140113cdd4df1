"""``convert``: record files, against ``cp`` of their bytes; a tar of tiny files, against ``tar x``; with ``sync``."""

from __future__ import annotations

import io
import shutil
import statistics
import subprocess
import sys
import tarfile
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


def _unpack(source: Path, output: Path) -> None:
    output.mkdir()
    subprocess.run(["tar", "xf", source, "-C", output], check=True)
    subprocess.run(["sync", "-f", output], check=True)


def _measure_tar(report: Report, folder: Path, count: int, rounds: int) -> None:
    source, output, unpacked = folder / "tiny.tar", folder / "tiny.ffr", folder / "tiny"
    with tarfile.open(source, "w") as archive:
        for k in range(count):
            info = tarfile.TarInfo(f"{k // 1000:04}/{k:07}")
            info.size = 20
            archive.addfile(info, io.BytesIO(b"%020d" % k))

    def prepare() -> None:
        output.unlink(missing_ok=True)
        shutil.rmtree(unpacked, ignore_errors=True)
        page_cache.warm(source)
        subprocess.run(["sync"], check=True)

    ours, theirs = partial(_convert, source, output), partial(_unpack, source, unpacked)
    taken = in_turns(ours, theirs, prepare, "converting a tar", rounds)
    rates = [count / statistics.median(times) for times in taken]
    what = f"{count:,} tiny files from tar"
    report.add(
        Figure("convert", what, rates[0], "files/s", rates[1], "tar x + sync", paired_ratio(*reversed(taken)), 1.0)
    )


def run(report: Report, scratch: Path, quick: bool) -> None:
    count, rounds = 10_000, 3 if quick else 5
    ffrecord = data.equal_records(scratch, count, 100_000)
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        _measure_tar(report, Path(folder), 2 * count if quick else 20 * count, rounds)
        for form, name in TARGETS.items():
            _measure(report, ffrecord, Path(folder), f"{count:,} of 100 KB to {form}", name, rounds)
        for form in ("tfrecord", "bag"):
            source = Path(folder, f"source.{form}")
            _convert(ffrecord, source)
            _measure(report, source, Path(folder), f"{count:,} of 100 KB from {form}", "to.ffr", rounds)
            source.unlink()
