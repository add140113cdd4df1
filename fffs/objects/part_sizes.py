"""The sizes of the parts of an upload, and which bytes of them are written."""

from __future__ import annotations

import bisect
from typing import Final

MIB: Final = 1 << 20
SMALLEST: Final = 8 * MIB
MOST: Final = 10_000
"""Parts of an object of S3 at most; its size is at most 5 TiB."""

_STEPS: Final = (8 * MIB, 32 * MIB, 128 * MIB, 512 * MIB, 2048 * MIB)
_EACH: Final = MOST // len(_STEPS)


class PartSizes:
    """Divides an object into parts, which are numbered from 0.

    If its size is known, all have the same size. Otherwise each 2,000 parts are larger than those before, so that 5 TiB
    are less than 10,000 parts, and small objects need little memory.
    """

    def __init__(self, total: int | None = None) -> None:
        """total: about the size of the object in bytes, if it is known; a tenth more is possible."""
        if total is None:
            self._sizes = list(_STEPS)
        else:
            self._sizes = [max(SMALLEST, -(-total // (MOST * 9 // 10 * MIB)) * MIB)]
        self._begins = [0]
        for size in self._sizes[:-1]:
            self._begins.append(self._begins[-1] + size * _EACH)

    def number(self, offset: int) -> int:
        """Return the number of the part that has the byte at an offset."""
        step = bisect.bisect_right(self._begins, offset) - 1
        return step * _EACH + (offset - self._begins[step]) // self._sizes[step]

    def range(self, number: int) -> tuple[int, int]:
        """Return where a part begins and ends."""
        step = min(number // _EACH, len(self._sizes) - 1)
        begin = self._begins[step] + (number - step * _EACH) * self._sizes[step]
        return begin, begin + self._sizes[step]


class WrittenRanges:
    """The ranges of an object that are written, as far as its parts are not complete. Not thread-safe."""

    def __init__(self, sizes: PartSizes) -> None:
        self._sizes = sizes
        self._ranges: dict[int, list[tuple[int, int]]] = {}  # part -> ranges, in order and apart from each other
        self.complete: set[int] = set()

    def add(self, offset: int, size: int) -> list[int]:
        """Add a range, and return the numbers of the parts that it completes."""
        found, end = [], offset + size
        while offset < end:
            number = self._sizes.number(offset)
            begin, after = self._sizes.range(number)
            stop = min(end, after)
            if number not in self.complete:
                ranges = _joined(self._ranges.get(number, []), (offset, stop))
                if ranges == [(begin, after)]:
                    self._ranges.pop(number, None)
                    self.complete.add(number)
                    found.append(number)
                else:
                    self._ranges[number] = ranges
            offset = stop
        return found


def _joined(ranges: list[tuple[int, int]], new: tuple[int, int]) -> list[tuple[int, int]]:
    """Return ranges with one more, those joined that touch."""
    begin, end = new
    apart = []
    for first, last in ranges:
        if last < begin or first > end:
            apart.append((first, last))
        else:
            begin, end = min(begin, first), max(end, last)
    bisect.insort(apart, (begin, end))
    return apart
