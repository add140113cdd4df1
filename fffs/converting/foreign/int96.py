"""The unit of times that Parquet files have as INT96, which is the default of Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np

from fffs.converting.foreign.parquet_footer import SIZE
from fffs.granular.optional import library

_TIME: Final = np.dtype([("nanoseconds", "<i8"), ("day", "<u4")])  # of the day; as Arrow takes them
_EPOCH: Final = 2_440_588  # the number of the day which begins in 1970
_DAY: Final = 86_400 * 10**6  # microseconds
_FARTHEST: Final = 10**8  # days: microseconds of 64 bits hold them, and 2**63 nanoseconds more


def has_int96(schema: Any) -> bool:
    """Return whether a file of such a schema, which is Parquet's, has such times."""
    return any(_are_times(schema))


def int96_columns(schema: Any, arrow: Any) -> dict[str, list[bool]]:
    """Return the columns with such times, and which of the arrays in them these are.

    schema: Parquet's, with INT96. arrow: Arrow's, for the same columns.
    """
    are_times = iter(_are_times(schema))
    columns = {field.name: list(islice(are_times, _count(field.type))) for field in arrow}
    return {name: times for name, times in columns.items() if any(times)}


def _are_times(schema: Any) -> list[bool]:
    return [schema.column(k).physical_type == "INT96" for k in range(len(schema))]


@dataclass
class Int96Needs:
    """What the times of a table need.

    Arrow reads them as nanoseconds of 64 bits, where those beyond the years 1677 to 2262 overflow without an error, or
    as microseconds. These lose digits, and they are wrong for times of day before 1970 that Arrow itself wrote until
    pyarrow 22, and Go's Arrow: as the day after, and a negative number of nanoseconds, which is taken for a positive
    one. ``needs_nanoseconds`` and ``overflows``: whether microseconds or nanoseconds would be wrong.
    """

    needs_nanoseconds: bool = False
    overflows: bool = False

    def see(self, batches: Iterable[Any], columns: dict[str, list[bool]]) -> None:
        """Look at record batches in which the times are bytes. columns: as from ``int96_columns``."""
        for batch in batches:
            for name, times in columns.items():
                arrays = _leaves(batch.column(batch.schema.get_field_index(name)))
                for array, is_time in zip(arrays, times, strict=True):
                    if is_time:
                        self._see(_times(array))

    def _see(self, times: Any) -> None:
        nanoseconds, day = times["nanoseconds"], times["day"].astype(np.int64) - _EPOCH
        if (day > _FARTHEST).any():
            self.needs_nanoseconds = self.overflows = True
            return
        microseconds = day * _DAY + nanoseconds // 1000
        digits = nanoseconds % 1000
        self.needs_nanoseconds |= bool(((nanoseconds < 0) | (digits != 0)).any())
        # The product wraps around where there is an overflow.
        self.overflows |= bool(((microseconds * 1000 + digits) // 1000 != microseconds).any())


def _times(array: Any) -> Any:
    """Return the times in an array of their bytes, without nulls: in Arrow's memory."""
    some = array.drop_null()
    return np.frombuffer(some.buffers()[1] or b"", _TIME, len(some), some.offset * SIZE if len(some) else 0)


def _count(kind: Any) -> int:
    """Return the number of columns that Parquet has for a type of Arrow."""
    types = library("pyarrow.types", "reading tables")
    kind = getattr(kind, "storage_type", kind)  # of an extension
    if types.is_map(kind):
        return _count(kind.key_type) + _count(kind.item_type)
    if types.is_nested(kind):
        return sum(_count(kind.field(k).type) for k in range(kind.num_fields))
    return 1


def _leaves(array: Any) -> Iterator[Any]:
    """Yield the arrays in an array that are not nested, in the order of Parquet's columns."""
    types = library("pyarrow.types", "reading tables")
    array = getattr(array, "storage", array)
    if types.is_map(array.type):
        yield from _leaves(array.keys)
        yield from _leaves(array.items)
    elif types.is_nested(array.type):
        parts = array.flatten()
        for part in parts if isinstance(parts, list) else [parts]:
            yield from _leaves(part)
    else:
        yield array
