"""RecordSequence: records as a sequence, as Python and the loaders of other libraries expect one."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from fffs.base.numbers import Indices, divide
from fffs.files.file import UInt8Array

_TOGETHER: Final = 4 << 20  # bytes that an iteration reads at a time, at least one record
_RECORDS: Final = 4096


class RecordSequence(ABC):
    """Adds ``reader[k]``, slices, iteration in batches, and what asks for several records at a time.

    ``__getitems__`` is the method that loaders of torch look for in a map-style data set, and ``_getitems`` that of
    Grain's data sources.
    """

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of records."""

    @abstractmethod
    def read(self, indices: Indices) -> list[UInt8Array]:
        """Read records in one batch."""

    @abstractmethod
    def read_one(self, index: int) -> UInt8Array:
        """Read one record."""

    @abstractmethod
    def lengths(self, indices: Indices) -> npt.NDArray[np.int64]:
        """Return the lengths of records."""

    def __getitem__(self, index: Any) -> Any:
        """Return a record by its number, or a list of them for a slice. Raises RecordIndexError, and as ``read``."""
        if isinstance(index, slice):
            return self.read(range(*index.indices(len(self))))
        return self.read_one(operator.index(index))

    def __getitems__(self, indices: Sequence[int]) -> list[UInt8Array]:
        """Return records by their numbers, in one batch. Raises as ``read``."""
        return self.read(indices)

    _getitems = __getitems__

    def __iter__(self) -> Iterator[UInt8Array]:
        """Yield all records in order, which are read in batches of some MiB. Raises as ``read``."""
        for part in runs_of(len(self), self.lengths):
            yield from self.read(part)


def runs_of(count: int, lengths: Callable[[range], npt.NDArray[np.int64]]) -> Iterator[range]:
    """Yield the numbers of ``count`` records in runs that are read as one batch in an iteration. lengths: in bytes."""
    for start in range(0, count, _RECORDS):
        part = range(start, min(start + _RECORDS, count))
        for first, last in divide(lengths(part), _TOGETHER, _RECORDS):
            yield part[first:last]
