"""Parts: divides records when the result is several files."""

from __future__ import annotations

import numpy as np

from fffs.records.index import Int64Array


def cut(lengths: Int64Array, parts: int | None, part_size: int | None) -> list[int]:
    """Return the first records of all parts but the first: parts of about equal size, or of at most ``part_size``."""
    if parts is not None:
        return _cut_evenly(lengths, parts)
    return [] if part_size is None else _cut_by_size(lengths, part_size)


def _cut_evenly(lengths: Int64Array, parts: int) -> list[int]:
    n, ends = len(lengths), np.cumsum(lengths)
    total, count = int(ends[-1]) if n else 0, max(min(parts, n), 1)
    wanted = [int(np.searchsorted(ends, total * k // count, side="right")) for k in range(1, count)]
    # Each part has at least one record, for any distribution of sizes.
    for k in range(count - 1):
        wanted[k] = min(max(wanted[k], wanted[k - 1] + 1 if k else 1), n - (count - 1 - k))
    return wanted


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
