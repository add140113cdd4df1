"""JoinedIndex: the records of several files, numbered consecutively; their positions, and the errors about them."""

from __future__ import annotations

import bisect
import errno
import functools
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from fffs.base import as_ffrecord
from fffs.base.numbers import Indices, Int64Array, no_record, resolve
from fffs.errors import ChecksumError, RecordIndexError, SourceChangedError, TruncatedError
from fffs.native.checksums import CHECK_NONE
from fffs.records.source_file import SourceFile

_TOGETHER: Final = 1 << 18  # records that are looked at together


class JoinedIndex:
    """The indexes of open files as one. Immutable and thread-safe.

    ``starts`` and ``ends`` are int64[n], offsets in the files; ``checksums`` is uint32[n], 0 if there is none.
    ``truncated``: some records reach beyond the end of their file.
    """

    def __init__(self, files: Sequence[SourceFile]) -> None:
        self.files = tuple(files)
        indexes = [file.index for file in self.files]
        self._firsts = [0]
        for index in indexes:
            self._firsts.append(self._firsts[-1] + len(index))
        self.n = self._firsts[-1]
        self.truncated = any(index.truncated for index in indexes)
        self._first_records = np.array(self._firsts, np.int64)
        # A single file's arrays are used directly; those of several are joined, so that a batch is a single gather.
        self.starts = _joined([index.starts for index in indexes], np.int64)
        self.ends = _joined([index.ends for index in indexes], np.int64)
        sums = [np.zeros(len(i), np.uint32) if i.checksums is None else i.checksums for i in indexes]
        self.checksums = _joined(sums, np.uint32)

    # ------------------------------------------------------------ where records are

    def file_of(self, record: int) -> int:
        """Return the number of a record's file. ``record`` counts from 0 and is not checked."""
        return bisect.bisect_right(self._firsts, record) - 1

    def locate(self, record: int) -> tuple[SourceFile, int]:
        """Return a record's file and its number there. Raises RecordIndexError."""
        if not 0 <= record < self.n:
            raise RecordIndexError(no_record(record, self.n))
        k = self.file_of(record)
        return self.files[k], record - self._firsts[k]

    def first_record(self, file: int) -> int:
        """Return the number of a file's first record."""
        return self._firsts[file]

    def files_of(self, numbers: Int64Array) -> Int64Array:
        """Return the number of each record's file."""
        return np.searchsorted(self._first_records, numbers, side="right") - 1

    def length(self, record: int) -> int:
        """Return a record's length in bytes. ``record`` counts from 0 and is not checked."""
        return int(self.ends.item(record) - self.starts.item(record))

    @functools.cached_property
    def have_one_length(self) -> bool:
        """Whether there are records, all of one length."""
        begins = range(0, self.n, _TOGETHER)
        pieces = (self.ends[begin : begin + _TOGETHER] - self.starts[begin : begin + _TOGETHER] for begin in begins)
        return self.n > 0 and all(bool((piece == self.length(0)).all()) for piece in pieces)

    def resolve(self, indices: Indices) -> tuple[Int64Array, Int64Array]:
        """Return record numbers from 0, and their lengths in bytes. Raises RecordIndexError, TruncatedError."""
        numbers = resolve(indices, self.n)
        if self.truncated:
            self.refuse_truncated(numbers.tolist())
        return numbers, self.ends[numbers] - self.starts[numbers]

    # ------------------------------------------------------------ failures

    def fits(self, record: int) -> bool:
        """Whether the record's file is long enough for it."""
        file, row = self.locate(record)
        return file.index.readable(row)

    def refuse_truncated(self, numbers: Iterable[int]) -> None:
        """Raise TruncatedError for the first record that does not fit.

        Call this before memory is allocated: lengths of records beyond the end of a truncated file are unverified.
        """
        for number in numbers:
            if not self.fits(number):
                raise self.truncation(number)

    def truncation(self, number: int) -> TruncatedError:
        """Return the exception for a record that does not fit."""
        file, row = self.locate(number)
        return TruncatedError(
            f"{file.index.path}: record {row} reaches past the end of the file, which is truncated; copy it again",
            path=file.index.path,
            record=row,
            number=number,
        )

    def failure(self, number: int, status: int, expected: int = 0, actual: int = 0) -> Exception:
        """Return the exception for a record's status from the engine, and for checksums that differ."""
        file, row = self.locate(number)
        path = file.index.path
        if status == -errno.EBADMSG:
            mismatch = f"Sample {number}: checksum mismached!" if as_ffrecord.is_installed() else "checksum mismatch"
            return ChecksumError(
                f"{path}: record {row}: {mismatch} (expected {expected:#010x}, got {actual:#010x}); its bytes are "
                "damaged, other records are unaffected",
                path=path,
                record=row,
                number=number,
                expected=expected,
                actual=actual,
            )
        lost = status in (-errno.ESTALE, -errno.ENODATA)
        if lost and file.index.check == CHECK_NONE and file.changed() == -errno.ESTALE:
            return SourceChangedError(
                f"{path}: its modification time or size changed while it was open, and it has no checksums that tell "
                "whether its bytes did; open it again"
            )
        if status == -errno.ENODATA:
            return self.truncation(number)
        return file.file.failure(-status, f"record {row}")


def _joined(arrays: list[Any], dtype: type[np.generic]) -> npt.NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate([np.empty(0, dtype), *arrays])
