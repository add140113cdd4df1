"""RecordStore: open files with their indexes, read by record number.

Records of several files are numbered through. Whole records are read in batches and checked at every read; ranges of
a record are checked at the first touch (see ``fffs/native/store.c``), which is what the mount needs.
"""

from __future__ import annotations

import bisect
import errno
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fffs.base.numbers import Indices, Int64Array, as_number, resolve
from fffs.base.shared import Shared
from fffs.errors import RecordIndexError, UsageError, WriteError
from fffs.files import dirfd
from fffs.native import engine, ffi, lib
from fffs.native.engine import CHECK_NONE
from fffs.records.identity import Identity, identify
from fffs.records.joined_index import JoinedIndex
from fffs.records.native_store import make_native_store
from fffs.records.source_file import SourceFile

UInt8Array = npt.NDArray[np.uint8]

# Records in a batch begin at multiples of this, so that they can be viewed as any dtype.
ALIGNMENT = 64
# Below this, memory comes from malloc, which is faster than the pool and wastes none of its pages.
POOLED = 128 * 1024
# How often a range is read of a record that is bad, and good when all of it is read: somebody wrote meanwhile.
RANGE_TRIES = 3
# How much of a record is copied between two looks at whether to go on.
PIECE = 16 * engine.BLOCK

# Looked up once: attributes of the library cost a tenth of a microsecond each.
_from_buffer = ffi.from_buffer
_BYTES = ffi.typeof("uint8_t[]")


def _read_first(*arguments: Any) -> int:
    """``fffs_read_one`` when it is called first; afterwards nothing stands in front of it."""
    global _read_one
    engine.ready()
    _read_one = lib.fffs_read_one
    return int(_read_one(*arguments))


_read_one: Any = _read_first


def _cut(buffer: UInt8Array, begins: Int64Array, lengths: Int64Array) -> list[UInt8Array]:
    """The records of a batch as views of its buffer, where they lie one after the other."""
    if len(lengths) and (lengths == lengths[0]).all() and lengths[0]:
        # Rows of a matrix take half as long as slices, which for records of 1 KiB is a tenth of all reading.
        return list(buffer.reshape(len(lengths), -1)[:, : lengths[0]])
    ends = begins + lengths
    return [buffer[a:b] for a, b in zip(begins.tolist(), ends.tolist(), strict=True)]


def _offsets(lengths: Int64Array) -> Int64Array:
    """Where records begin and end that lie one after another: int64[k + 1]."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def room(size: int) -> UInt8Array:
    """Writable uint8[size] with unspecified content, from the pool when that is worth it."""
    return engine.take(size) if size >= POOLED else np.empty(size, np.uint8)


class RecordStore(JoinedIndex, Shared):
    """The records of open files, numbered through. Owns the files' descriptors.

    May be used from any thread. A child of fork may go on using it. ``close`` from one thread while others read lets
    them finish first. Cannot be pickled: the reader above it reopens the files.
    """

    def __init__(self, files: Sequence[SourceFile]) -> None:
        JoinedIndex.__init__(self, files)
        self._native: Any = None
        self._keep: list[Any] = []
        self._unchecked = {k: file.stamp for k, file in enumerate(self.files) if file.index.check == CHECK_NONE}
        Shared.__init__(self, self.files[0].index.path if self.files else "no files")

    @functools.cached_property
    def identity(self) -> list[Identity]:
        """What each file is known by, as it was when it was opened; also after ``close``."""
        return [identify(file.index, file.status) for file in self.files]

    # ------------------------------------------------------------ life

    def _end(self) -> None:
        lib.fffs_store_free(self._native or ffi.NULL)
        self._native = None
        self._keep.clear()
        for fd in (*(file.fd for file in self.files), *self._direct_fds[self._direct_fds >= 0].tolist()):
            dirfd.close(fd)

    def expect_random_reads(self) -> None:
        """Tell the kernel that no record follows another.

        Then it reads a record's pages alone and at once; else it rounds 60 KiB up to the 128 KiB of its readahead, and
        reads a record of 160 KiB in two steps, the second after the first.
        """
        for file in self.files:
            os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_RANDOM)

    def use_direct(self, wanted: bool = True) -> bool:
        """Have batches read past the page cache from now on, or no longer. Returns whether that can be: of all files.
        Raises ClosedError.
        """
        wanted = wanted and engine.name() != "pread"
        with self.use(), self._lock:
            for k, file in enumerate(self.files):
                if wanted and self._direct_fds[k] < 0:
                    align = ffi.new("uint32_t *")
                    fd = lib.fffs_open_direct(file.fd, align)
                    if fd >= 0:
                        self._aligns[k], self._direct_fds[k] = align[0], fd
            self.direct = wanted and bool((self._direct_fds >= 0).all())
            return self.direct

    # ------------------------------------------------------------ whole records

    def read(self, indices: Indices, check: bool = True) -> list[UInt8Array]:
        """Read records in one batch.

        Args:
            indices: any number of record numbers; each gets an array of its own, also when it is asked for twice.
            check: compare the checksums.

        Returns:
            One 1-D writable uint8 array per index, in the order asked. They share one buffer, which lives until the
            last of them is gone: copy a record that is to be kept much longer than its batch.

        Raises:
            RecordIndexError, ChecksumError, TruncatedError, ReadError, ClosedError. Nothing is returned then.

        """
        numbers, lengths = self._lengths(indices)
        padded = (lengths + (ALIGNMENT - 1)) & -ALIGNMENT
        ends = np.cumsum(padded)
        begins = ends - padded
        buffer = self._room(numbers, ends)
        # Before the read, while helper threads are waking up for it.
        records = _cut(buffer, begins, lengths)
        self._fill(numbers, lengths, buffer, begins, check)
        return records

    def read_joined(self, indices: Indices, check: bool = True) -> tuple[UInt8Array, Int64Array]:
        """Read records in one batch, as ``read``, one after another into one buffer.

        Returns:
            The buffer, a 1-D writable uint8 array, and int64[k + 1]: record i is ``buffer[offsets[i]:offsets[i + 1]]``.

        """
        numbers, lengths = self._lengths(indices)
        offsets = _offsets(lengths)
        buffer = self._room(numbers, offsets)
        self._fill(numbers, lengths, buffer, offsets[:-1], check)
        return buffer, offsets

    def read_into(self, indices: Indices, out: UInt8Array, check: bool = True) -> Int64Array:
        """Read records in one batch, as ``read``, one after another into the beginning of out (1-D, writable).

        Returns:
            int64[k + 1]: record i is ``out[offsets[i]:offsets[i + 1]]``. What is behind the last is untouched; when
            this raises, out's content is unspecified.

        Raises:
            UsageError: out is too small; nothing was read.

        """
        numbers, lengths = self._lengths(indices)
        offsets = _offsets(lengths)
        if offsets[-1] > out.size:
            raise UsageError(f"the records have {offsets[-1]} bytes together, but there is room for {out.size} only")
        self._fill(numbers, lengths, out, offsets[:-1], check)
        return offsets

    def lengths(self, indices: Indices) -> Int64Array:
        """How long records are, in bytes: int64[k]."""
        return self._lengths(indices)[1]

    def prefetch(self, indices: Indices) -> None:
        """Let the kernel begin to read records into the page cache. Raises RecordIndexError, ClosedError."""
        numbers, lengths = self._lengths(indices)
        with self.use():
            if self.direct:
                return
            if self.around:  # several may be in one block
                numbers = np.sort(numbers)
                lengths = self._ends[numbers] - self._starts[numbers]
            engine.prefetch(self._requests(numbers, self._starts[numbers], lengths, check=False))

    def _room(self, numbers: Int64Array, ends: Int64Array) -> UInt8Array:
        """Memory for a batch whose last record ends at the last of ends; helper threads begin to wake up."""
        size = int(ends[-1]) if len(ends) else 0
        lib.fffs_engine_expect(len(numbers), size)
        return room(size)

    def _fill(
        self, numbers: Int64Array, lengths: Int64Array, buffer: UInt8Array, begins: Int64Array, check: bool
    ) -> None:
        """Read records to where they begin in a buffer; raises for the first that is bad."""
        with self.use():
            requests = self._requests(numbers, self._starts[numbers], lengths, check)
            requests["dest"] = begins + buffer.ctypes.data
            if len(numbers) and not engine.read_batch(requests):
                self._raise_first(numbers, requests)
            if check and self._unchecked:
                self._refuse_changed(numbers)

    def _refuse_changed(self, numbers: Int64Array) -> None:
        """After records were read: those of files without checksums are right only while nobody changes the file."""
        files = {0} if len(self.files) == 1 else set(np.unique(self._files_of(numbers)).tolist())
        for k in files & self._unchecked.keys():
            if status := lib.fffs_unchanged(self.files[k].fd, self._unchecked[k]):
                raise self._failure(int(self._first_records[k]), status, 0, 0)

    def _raise_first(self, numbers: Int64Array, requests: npt.NDArray[Any]) -> None:
        bad = int(np.flatnonzero(requests["status"])[0])
        row = requests[bad]
        raise self._failure(int(numbers[bad]), int(row["status"]), int(row["expected"]), int(row["actual"]))

    def read_one(self, record: int, check: bool = True) -> UInt8Array:
        """Read one record: a 1-D writable uint8 array with memory of its own. Raises what ``read`` raises."""
        number = record if type(record) is int else as_number(record)
        if not 0 <= number < self.n:
            number = int(resolve([number], self.n)[0])
        if self._truncated:
            self._refuse_truncated(np.array([number]))
        # A few microseconds in all: each call counts.
        offset = self._starts.item(number)
        length = self._ends.item(number) - offset
        buffer = room(length)
        file = self.files[bisect.bisect_right(self._firsts, number) - 1] if len(self.files) > 1 else self.files[0]
        kind, expected = (file.index.check, self._checksums.item(number)) if check else (CHECK_NONE, 0)
        self.begin_use()
        try:
            status = _read_one(file.fd, offset, length, _from_buffer(_BYTES, buffer), kind, expected)
            if check and kind == CHECK_NONE:
                self._refuse_changed(np.array([number]))
        finally:
            self.end_use()
        if status:
            numbers = np.array([number])
            lengths = self._ends[numbers] - self._starts[numbers]
            self._fill(numbers, lengths, buffer, np.zeros(1, np.int64), check)  # again, to say what is wrong
        return buffer

    def verify(self, numbers: Int64Array) -> list[tuple[int, Exception]]:
        """Read and check records without keeping a byte; the failures, each with its record's number."""
        failures: list[tuple[int, Exception]] = []
        if self._truncated:
            fits = np.fromiter((self._fits(int(i)) for i in numbers), bool, len(numbers))
            failures += [(int(i), self._truncation(int(i))) for i in numbers[~fits]]
            numbers = numbers[fits]
        starts = self._starts[numbers]
        with self.use():
            requests = self._requests(numbers, starts, self._ends[numbers] - starts, check=True)
            if engine.read_batch(requests):
                return failures
        for i in np.flatnonzero(requests["status"]):
            number, row = int(numbers[i]), requests[i]
            failure = self._failure(number, int(row["status"]), int(row["expected"]), int(row["actual"]))
            failures.append((number, failure))
        return failures

    def copy_to(self, record: int, fd: int, path: str, count: Callable[[int], None] | None = None) -> None:
        """Write a record to the start of a file open as fd, through a bounded buffer, then compare its checksum.

        path names the file in messages. count is called with the number of bytes of each piece; what it raises ends
        the copying. Raises ChecksumError (and then the file holds the bad bytes: remove it), TruncatedError, ReadError,
        WriteError, ClosedError.
        """
        if self._truncated and not self._fits(record):
            raise self._truncation(record)
        file, row = self.locate(record)
        crc, failed = ffi.new("uint32_t *"), ffi.new("int *")
        check = file.index.check
        start, length = int(file.index.starts[row]), self.length(record)
        whole = done = 0
        with self.use():
            while done < length:
                size = min(length - done, PIECE)
                status = lib.fffs_copy(file.fd, start + done, fd, done, size, check, crc, ffi.NULL, failed)
                if status == -errno.ENOMEM:
                    raise MemoryError("not enough memory to copy a record")
                if status != 0:
                    raise WriteError(-status, path) if failed[0] == fd else self._failure(record, status, 0, 0)
                whole = engine.checksum_combine(check, whole, crc[0], size) if done else crc[0]
                done += size
                if count:
                    count(size)
            if self._unchecked:
                self._refuse_changed(np.array([record]))
        if file.index.checksums is not None and whole != file.index.checksums[row]:
            raise self._failure(record, -errno.EBADMSG, int(file.index.checksums[row]), whole)

    # ------------------------------------------------------------ ranges

    @property
    def native(self) -> Any:
        """The C store, made when first needed: it remembers per record what was verified."""
        if self._native is None:
            with self._lock:
                if self._native is None:
                    self._native, self._keep = make_native_store(self.files)
        return self._native

    def watch(self) -> None:
        """Begin to watch the files for changes, as the first range does. It asks their file systems, and one of another
        machine may not answer any more when that range is read. Raises ReadError.
        """
        assert self.native, "made now"

    def read_range_into(
        self, record: int, start: int, dest: UInt8Array, *, check: bool = True, wait: bool = True
    ) -> int | None:
        """Read a range of a record, as long as dest (uint8, contiguous, writable), giving out only verified bytes.

        Args:
            record: its number, from 0.
            start: where in the record, in bytes.
            dest: gets the bytes.
            check: False gives out the bytes as they are in the file.
            wait: False gives up instead of waiting for a disk, or of checking a large record.

        Returns:
            How many bytes were read: fewer than asked only at the record's end. None when it would have to wait.

        Raises:
            RecordIndexError, ChecksumError, TruncatedError, SourceChangedError, ReadError, ClosedError.

        """
        flags = (0 if check else lib.FFFS_READ_UNVERIFIED) | (0 if wait else lib.FFFS_READ_NOWAIT)
        for _ in range(RANGE_TRIES):
            with self.use():
                into = ffi.cast("uint8_t *", dest.ctypes.data)
                got = int(lib.fffs_store_read(self.native, record, start, dest.size, into, flags))
            if got >= 0:
                return got
            if not wait and got in (-errno.EAGAIN, -errno.EBADMSG):
                return None  # to say what is wrong with a record, all of it is read again
            if got != -errno.EBADMSG:
                break
            # A range read does not say what checksum came out: reading the whole record again does.
            if again := self.verify(np.array([record])):
                raise again[0][1]
        if got == -errno.ERANGE:
            raise RecordIndexError(f"there is no record {record}: there are {self.n}")
        if got == -errno.ENOMEM:
            raise MemoryError("not enough memory to read a record")
        raise self._failure(record, got, self.checksum(record) or 0, 0)

    def read_range(self, record: int, start: int, stop: int, *, check: bool = True) -> UInt8Array:
        """The bytes of a record from start to stop (both clipped to it) as a new uint8 array; raises as above."""
        number = int(resolve([as_number(record)], self.n)[0])
        start, stop = as_number(start, "the bounds of a range"), as_number(stop, "the bounds of a range")
        if self._truncated:
            self._refuse_truncated(np.array([number]))
        length = self.length(number)
        start, stop = min(max(start, 0), length), min(max(stop, 0), length)
        dest = room(max(stop - start, 0))
        got = self.read_range_into(number, start, dest, check=check)
        return dest[: got or 0]

    def verified(self, record: int) -> bool:
        """Whether all of the record has been verified by range reads since the file last changed."""
        with self.use():
            return bool(lib.fffs_store_verified(self.native, record))
