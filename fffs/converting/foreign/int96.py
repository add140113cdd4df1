"""The unit of times that Parquet files have as INT96, which is the default of Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from fffs.granular.optional import library

_ROUND: Final = 2**64 // 1000  # microseconds after which nanoseconds of 64 bits repeat


def has_int96(schema: Any) -> bool:
    """Return whether a file of such a schema, which is Parquet's, has such times."""
    return any(schema.column(k).physical_type == "INT96" for k in range(len(schema)))


def int96_columns(fine: Any, coarse: Any) -> list[str]:
    """Return the columns with such times: those whose types in Arrow's schemas depend on the unit that is asked for."""
    return [a.name for a, b in zip(fine, coarse, strict=True) if not a.type.equals(b.type)]


@dataclass
class Int96Needs:
    """What the times that were seen need.

    Arrow reads them as nanoseconds of 64 bits, where those beyond the years 1677 to 2262 overflow without an error, or
    as microseconds, which lose digits. Older releases of pyarrow (22, for example) wrote times before 1970 as the next
    day less some nanoseconds. As microseconds, they are read 584 years too late, and digits seem to be lost.
    """

    has_digits: bool = False
    _is_next: bool = False  # a time of the years after 2262, or one that was written so
    _is_written_so: bool = False
    _is_far: bool = False

    @property
    def overflows(self) -> bool:
        """Whether there are times that nanoseconds of 64 bits cannot hold."""
        return self._is_far or (self._is_next and not self._is_written_so)

    def see(self, batches: Iterable[tuple[Any, Any]]) -> None:
        """Look at record batches: the same rows as nanoseconds and as microseconds."""
        for pair in batches:
            for fine, coarse in zip(*map(_leaves, pair), strict=True):
                if not fine.type.equals(coarse.type):
                    self._see(*(array.drop_null().view("int64").to_numpy() for array in (fine, coarse)))

    def _see(self, fine: Any, coarse: Any) -> None:
        digits = (fine - coarse * 1000) != 0  # both wrap around alike where there is an overflow
        ahead = coarse - fine // 1000
        is_next = (ahead == _ROUND) | (ahead == _ROUND + 1)
        self.has_digits |= bool(digits.any())
        self._is_next |= bool((is_next & ~digits).any())
        self._is_written_so |= bool((is_next & digits).any())
        self._is_far |= bool(((ahead != 0) & ~is_next).any())


def _leaves(batch: Any) -> Iterator[Any]:
    """Yield the arrays in a batch that are not nested."""
    types = library("pyarrow.types", "reading tables")
    left = list(batch.columns)
    while left:
        array = left.pop()
        if types.is_map(array.type):
            left += [array.keys, array.items]
        elif types.is_nested(array.type):
            parts = array.flatten()
            left += parts if isinstance(parts, list) else [parts]
        else:
            yield array
