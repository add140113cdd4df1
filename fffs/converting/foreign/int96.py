"""The unit of times that Parquet files have as INT96, which is the default of Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from fffs.base.numbers import Int64Array
from fffs.granular.optional import library

_SHIFT: Final = 2**64  # nanoseconds after which their numbers of 64 bits repeat


def has_int96(schema: Any) -> bool:
    """Return whether a file of such a schema, which is Parquet's, has such times."""
    return any(schema.column(k).physical_type == "INT96" for k in range(len(schema)))


def int96_columns(fine: Any, coarse: Any) -> list[str]:
    """Return the columns with such times: those whose types in Arrow's schemas depend on the unit that is asked for."""
    return [a.name for a, b in zip(fine, coarse, strict=True) if not a.type.equals(b.type)]


@dataclass
class Int96Needs:
    """What the times of a table need.

    Arrow reads them as nanoseconds of 64 bits, where those beyond the years 1677 to 2262 overflow without an error, or
    as microseconds, which lose digits. ``needs_nanoseconds`` and ``overflows``: whether one of these is wrong.
    """

    needs_nanoseconds: bool = False
    overflows: bool = False

    def see(self, batches: Iterable[tuple[Any, Any]], by_arrow: bool) -> None:
        """Look at the record batches of a file: the same rows as nanoseconds and as microseconds."""
        columns: dict[int, _Column] = {}
        for pair in batches:
            for number, (fine, coarse) in enumerate(zip(*map(_leaves, pair), strict=True)):
                if not fine.type.equals(coarse.type):
                    column = columns.setdefault(number, _Column(by_arrow))
                    column.see(*map(_numbers, (fine, coarse)))
        for column in columns.values():
            self.needs_nanoseconds |= column.has_digits or column.is_shifted
            self.overflows |= column.overflows


@dataclass
class _Column:
    """The times of a column.

    Older releases of Arrow (pyarrow 22, for example) wrote a time of day before 1970 as the next day less some
    nanoseconds. As microseconds, it is read 2**64 nanoseconds too late. Arrow writes columns of nanoseconds, none of
    which is far, and others, which have no digits beside the rest of that shift.
    """

    by_arrow: bool
    has_digits: bool = False
    is_shifted: bool = False
    is_far: bool = False  # unless the column is of nanoseconds

    @property
    def overflows(self) -> bool:
        """Whether nanoseconds of 64 bits cannot hold a time."""
        return self.is_far and not (self.by_arrow and self.has_digits)

    def see(self, fine: Int64Array, coarse: Int64Array) -> None:
        digits = fine - coarse * 1000  # both wrap around alike where there is an overflow
        shifted = (digits == _SHIFT % 1000) & self.by_arrow
        self.has_digits |= bool(((digits != 0) & ~shifted).any())
        self.is_shifted |= bool(shifted.any())
        self.is_far |= bool((fine // 1000 != coarse - shifted * (_SHIFT // 1000)).any())


def _numbers(array: Any) -> Int64Array:
    """Return the numbers of an array of times: int64[n] in Arrow's memory. ``to_numpy`` would import pandas."""
    some = array.drop_null()
    return np.frombuffer(some.buffers()[1] or b"", np.int64, len(some), some.offset * 8 if len(some) else 0)


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
