"""Records that are near each other in a file are read with one request, where a request costs more than a few bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

GAP: Final = 32 << 10  # bytes between two records that are read, because they cost less than a second request
PART: Final = 8 << 20  # bytes of one request, at most
AT_ONCE: Final = 64 << 20  # bytes of a batch that are in memory besides its result


def plan_requests(requests: npt.NDArray[Any], rows: npt.NDArray[Any]) -> Iterator[list[tuple[int, int, list[int]]]]:
    """Yield groups of ranges, each with the rows whose records it contains."""
    rows = rows[np.argsort(requests["offset"][rows], kind="stable")]
    begins = requests["offset"][rows].tolist()
    ends = (requests["offset"][rows] + requests["length"][rows]).tolist()
    group: list[tuple[int, int, list[int]]] = []
    size = 0
    for row, begin, end in zip(rows.tolist(), begins, ends, strict=True):
        if group and begin <= group[-1][1] + GAP and max(end, group[-1][1]) - group[-1][0] <= PART:
            first, last, inside = group[-1]
            size += max(end - last, 0)
            group[-1] = (first, max(end, last), [*inside, row])
            continue
        if group and size + end - begin > AT_ONCE:
            yield group
            group, size = [], 0
        group.append((begin, end, [row]))
        size += end - begin
    if group:
        yield group
