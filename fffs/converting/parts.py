"""Parts: divides records when the result is several files."""

from __future__ import annotations

from typing import Final

import numpy as np

from fffs.packing.division import cut_at
from fffs.records.index import Int64Array

FRAME: Final = 16
"""Bytes around a record that count as well, about: so records without bytes are divided, too."""


def cut(lengths: Int64Array, parts: int | None, part_size: int | None) -> list[int]:
    """Return the first records of all parts but the first: parts of about equal size, or of at most ``part_size``."""
    if parts is not None:
        return _cut_evenly(lengths, parts)
    return [] if part_size is None else _cut_by_size(lengths, part_size)


def _cut_evenly(lengths: Int64Array, parts: int) -> list[int]:
    weights = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths + FRAME)])
    count = max(min(parts, len(lengths)), 1)
    return cut_at(weights, np.zeros(len(weights), np.int64), count)[1:-1]


def _cut_by_size(lengths: Int64Array, part_size: int) -> list[int]:
    n, ends = len(lengths), np.cumsum(lengths)
    bounds: list[int] = []
    first = 0
    while True:
        before = int(ends[first - 1]) if first else 0
        first = max(int(np.searchsorted(ends, before + part_size, side="right")), first + 1)
        if first >= n:
            return bounds
        bounds.append(first)
