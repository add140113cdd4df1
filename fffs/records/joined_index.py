"""JoinedIndex: the records of several files, numbered through: where each is, and what went wrong with it."""

from __future__ import annotations

import bisect
import errno
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fffs.base.numbers import Indices, Int64Array, resolve
from fffs.errors import ChecksumError, ReadError, RecordIndexError, SourceChangedError, TruncatedError
from fffs.native import engine
from fffs.native.engine import CHECK_NONE
from fffs.records.index import RecordIndex
from fffs.records.source_file import SourceFile


class JoinedIndex:
    """The indexes of open files as one, for ``RecordStore``, which reads. May be used from any thread."""

    direct = False
    """Batches are read past the page cache, where the files can be."""

    around = 0
    """What must come from a disk comes with all of its aligned block of so many bytes; 0: alone."""

    def __init__(self, files: Sequence[SourceFile]) -> None:
        self.files = tuple(files)
        counts = [len(file.index) for file in self.files]
        self._firsts = [0]
        for count in counts:
            self._firsts.append(self._firsts[-1] + count)
        self.n = self._firsts[-1]
        self._check = max((file.index.check for file in self.files), default=CHECK_NONE)
        self._truncated = any(file.index.truncated for file in self.files)
        self._first_records = np.array(self._firsts, np.int64)
        self._fds = np.array([file.fd for file in self.files], np.int32)
        self._checks = np.array([file.index.check for file in self.files], np.uint32)
        # Filled by who opens files for reads past the page cache: see fffs_open_direct.
        self._aligns = np.zeros(len(self.files), np.uint32)
        self._direct_fds = np.full(len(self.files), -1, np.int32)
        self._join([file.index for file in self.files])

    def _join(self, indexes: list[RecordIndex]) -> None:
        """One file's arrays serve as they are; those of several are joined so that a batch is a single gather."""
        if len(indexes) == 1:
            self._starts, self._ends = indexes[0].starts, indexes[0].ends
            sums = indexes[0].checksums
            self._checksums = np.zeros(self.n, np.uint32) if sums is None else sums
            return
        self._starts = np.concatenate([np.empty(0, np.int64), *(index.starts for index in indexes)])
        self._ends = np.concatenate([np.empty(0, np.int64), *(index.ends for index in indexes)])
        self._checksums = np.concatenate(
            [
                np.empty(0, np.uint32),
                *(np.zeros(len(i), np.uint32) if i.checksums is None else i.checksums for i in indexes),
            ]
        )

    def locate(self, record: int) -> tuple[SourceFile, int]:
        """The file a record is in, and its number there."""
        if not 0 <= record < self.n:
            raise RecordIndexError(f"there is no record {record}: the numbers go from 0 to {self.n - 1}")
        k = bisect.bisect_right(self._firsts, record) - 1
        return self.files[k], record - self._firsts[k]

    def first_record(self, file: int) -> int:
        """The number of a file's first record."""
        return self._firsts[file]

    def length(self, record: int) -> int:
        """A record's length in bytes. ``record`` is not checked and counts from 0."""
        return int(self._ends[record]) - int(self._starts[record])

    def checksum(self, record: int) -> int | None:
        """A record's stored checksum, or None when its format has none."""
        file, row = self.locate(record)
        return None if file.index.checksums is None else int(file.index.checksums[row])

    # ------------------------------------------------------------ batches

    def _lengths(self, indices: Indices) -> tuple[Int64Array, Int64Array]:
        """Numbers from 0, and the length of each in bytes. Raises RecordIndexError, TruncatedError."""
        numbers = resolve(indices, self.n)
        if self._truncated:
            self._refuse_truncated(numbers)
        return numbers, self._ends[numbers] - self._starts[numbers]

    def _files_of(self, numbers: Int64Array) -> Int64Array:
        """Which file each record is in."""
        return np.searchsorted(self._first_records, numbers, side="right") - 1

    def _requests(self, numbers: Int64Array, starts: Int64Array, lengths: Int64Array, check: bool) -> npt.NDArray[Any]:
        """What the engine is asked for, without where it goes."""
        requests = np.zeros(len(numbers), engine.REQUEST)
        requests["offset"] = starts
        requests["length"] = lengths
        rows: Any = 0
        if len(self.files) > 1:
            rows = self._files_of(numbers)
        requests["fd"] = self._fds[rows]
        checks = self._checks[rows]
        if self.direct:
            requests["align"], requests["direct_fd"] = self._aligns[rows], self._direct_fds[rows]
        else:
            requests["around"] = self.around
        if check and self._check != CHECK_NONE:
            requests["check"] = checks
            requests["expected"] = self._checksums[numbers]
        return requests

    # ------------------------------------------------------------ failures

    def _fits(self, record: int) -> bool:
        file, row = self.locate(record)
        return file.index.readable(row)

    def _refuse_truncated(self, numbers: Int64Array) -> None:
        """Before memory is claimed: in a file that was cut, lengths behind the cut are only claims."""
        for number in numbers.tolist():
            if not self._fits(number):
                raise self._truncation(number)

    def _truncation(self, number: int) -> TruncatedError:
        file, row = self.locate(number)
        return TruncatedError(
            f"{file.index.path}: record {row} reaches past the end of the file; the file was cut, copy it again",
            path=file.index.path,
            record=row,
            number=number,
        )

    def _failure(self, number: int, status: int, expected: int, actual: int) -> Exception:
        """The exception for what the engine said about a record."""
        file, row = self.locate(number)
        path = file.index.path
        if status == -errno.EBADMSG:
            return ChecksumError(
                f"{path}: record {row}: Sample {number}: checksum mismached! "
                f"(expected {expected:#010x}, got {actual:#010x}) Its bytes are damaged; other records are unaffected",
                path=path,
                record=row,
                number=number,
                expected=expected,
                actual=actual,
            )
        if status == -errno.ENODATA:
            return self._truncation(number)
        if status == -errno.ESTALE and file.index.check == CHECK_NONE:
            return SourceChangedError(
                f"{path}: its modification time or size changed while it was open, and it has no checksums that tell "
                "whether its bytes did; open it again"
            )
        if status == -errno.ESTALE:
            return SourceChangedError(f"{path}: the file keeps changing while it is read; open it when it is complete")
        return ReadError(-status, path, f"record {row}")
