"""Rows of 100 bytes of data sets, one at a time and in slices, against granular. Part of ``formats``."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import data
from figures import Figure, Report, best, paired_ratio, progress, seconds

from fffs.granular import DatasetWriter
from fffs.granular.granular_readers import StoredDatasetReader

ROWS = 20_000
AT_ONCE = 100
GOAL = 0.5  # of the rows that granular reads in the same time


def measure(report: Report, scratch: Path, rounds: int) -> None:
    """Compare readers of the same files, by turns."""
    try:
        import granular
    except ImportError as error:
        report.skip("formats", f"granular is not installed ({error})")
        return
    chosen = random.Random(1).sample(range(ROWS), 4_000)
    slices = [slice(at, at + AT_ONCE) for at in range(0, ROWS, AT_ONCE)]
    for columns in (1, 3):
        folder = data.kept(scratch / f"rows-{ROWS}-{columns}", lambda path, count=columns: _write(path, count))
        ours = StoredDatasetReader(folder, granular.decoders)
        theirs = granular.DatasetReader(str(folder), granular.decoders)
        for what, keys, count in (("one at a time", chosen, len(chosen)), (f"slices of {AT_ONCE}", slices, ROWS)):
            progress(f"reading rows of {columns} columns: {what}")
            pairs = [(seconds(_reads(theirs, keys)), seconds(_reads(ours, keys))) for _ in range(rounds)]
            baseline, mine = best(_reads(theirs, keys), 1), min(mine for _, mine in pairs)
            ratio = paired_ratio(*zip(*pairs, strict=True))
            progress("")
            name = f"rows of 100 bytes in {columns} columns, {what}"
            report.add(Figure("formats", name, count / mine, "rows/s", count / baseline, "granular", ratio, GOAL))


def _reads(reader: Any, keys: list[Any]) -> Callable[[], object]:
    def read() -> None:
        for key in keys:
            reader[key]

    return read


def _write(path: Path, columns: int) -> None:
    spec = {f"column{k}": "bytes" for k in range(columns)}
    with DatasetWriter(path, spec, layout="v3") as writer:
        for row in range(ROWS):
            writer.append({key: row.to_bytes(100 // columns, "little") for key in spec}, flush=False)
