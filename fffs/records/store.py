"""RecordStore: open files with their indexes, read by record number.

Records of several files are numbered consecutively. Whole records are read in batches and checked at each read
(``batch_reader``); ranges of a record are checked at the first read (``ranges``).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fffs.base.cache_settings import listed_once
from fffs.base.numbers import Indices, Int64Array, as_number, distinct, resolve
from fffs.base.shared_files import Shared
from fffs.errors import FffsError, ReadError, RecordIndexError, UsageError
from fffs.files.file import UInt8Array
from fffs.files.pwrite import Writable
from fffs.native import engine, ffi, lib
from fffs.native.checksums import CHECK_NONE, checksum_combine
from fffs.records.batch_reader import BatchReader
from fffs.records.identity import Identity, identify
from fffs.records.joined_index import JoinedIndex
from fffs.records.policy import ReadPolicy
from fffs.records.ranges import RangeReader
from fffs.records.source_file import SourceFile

# Alignment of the records in a batch, so that they can be viewed as any dtype.
ALIGNMENT = 64
# Smaller memory comes from malloc, which is faster than the pool and wastes no pages.
POOLED = 128 * 1024
# How often a range is read again if its record seemed bad, but is good when it is read whole: it was being written.
RANGE_TRIES = 3
# Bytes of a record that are copied between two calls of ``count``, which may stop the copy.
PIECE = 16 * engine.BLOCK

# Looked up once: an attribute of the library costs a tenth of a microsecond.
_from_buffer = ffi.from_buffer
_BYTES = ffi.typeof("uint8_t[]")
_ADDRESS = ffi.typeof("uintptr_t")


def _read_first(*arguments: Any) -> int:
    """Set up the engine at the first call, and replace itself by ``fffs_read_one``."""
    global _read_one
    engine.ready()
    _read_one = lib.fffs_read_one
    return int(_read_one(*arguments))


_read_one: Any = _read_first


def _cut(buffer: UInt8Array, begins: Int64Array, lengths: Int64Array) -> list[UInt8Array]:
    """Return the records of a batch as views of its buffer."""
    if len(lengths) and (lengths == lengths[0]).all() and lengths[0]:
        # Rows of a matrix take half the time of slices: a tenth of the whole read for records of 1 KiB.
        return list(buffer.reshape(len(lengths), -1)[:, : lengths[0]])
    ends = begins + lengths
    return [buffer[a:b] for a, b in zip(begins.tolist(), ends.tolist(), strict=True)]


def _offsets(lengths: Int64Array) -> Int64Array:
    """Return the bounds of consecutive records: int64[k + 1]."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def room(size: int) -> UInt8Array:
    """Return writable uint8[size] with unspecified content, from the pool if it is large."""
    return engine.take(size) if size >= POOLED else np.empty(size, np.uint8)


class RecordStore(Shared):
    """The records of open files, numbered consecutively. Owns the files.

    Thread-safe; may be used in a child of fork. ``close`` waits for reads of other threads. Cannot be pickled: the
    reader above it opens the files again. ``use_direct`` and ``use_blocks`` replace ``policy``.
    """

    def __init__(self, files: Sequence[SourceFile], *, closes_files: bool = True) -> None:
        """closes_files=False: the files are borrowed, and stay open when the store is closed."""
        self._index = JoinedIndex(files)
        self.files, self.n = self._index.files, self._index.n
        self.policy = ReadPolicy(check=all(file.check for file in files))
        self._batches = BatchReader(self._index)
        self._ranges = RangeReader(self.files)
        self._in_c = all(file.file.descriptor != -1 for file in self.files)
        self._reads = [(file.file.descriptor, file.index.check) for file in self.files]
        self._unchecked = {k for k, file in enumerate(self.files) if file.index.check == CHECK_NONE}
        self._closes_files = closes_files
        self._identity: list[Identity] | None = None
        Shared.__init__(self, self.files[0].index.path if self.files else "no files")

    @property
    def identity(self) -> list[Identity]:
        """Return the identity of each file as of opening; also after ``close``."""
        # Not functools.cached_property: before Python 3.12 it has a lock, which a child of fork may find locked.
        if self._identity is None:
            self._identity = [identify(file.index, file.file) for file in self.files]
        return self._identity

    # ------------------------------------------------------------ life

    def _end(self) -> None:
        self._ranges.free()
        if self._closes_files:
            for file in self.files:
                file.close()

    def forget_other_threads(self) -> None:
        """See ``Shared``."""
        self._ranges.forget_other_threads()
        super().forget_other_threads()

    def expect_random_reads(self) -> None:
        """Prepare the files for reads in random order."""
        for file in self.files:
            file.file.expect_random_reads()

    @property
    def is_remote(self) -> bool:
        """Whether reading waits for another machine."""
        return any(file.file.is_remote for file in self.files)

    def use_caches(self) -> str:
        """Keep what is read of files that are not local on the local disk. Returns as ``File.use_cache``."""
        with listed_once():
            answers = [file.file.use_cache() for file in self.files]
        with self._lock:
            self.policy = replace(self.policy, caches=True)
        return next(filter(None, answers), "")

    def use_direct(self, wanted: bool = True) -> bool:
        """Bypass the page cache for batches from now on, or not any more.

        Returns False if not all files support it. Raises ClosedError.
        """
        with self.use(), self._lock:
            direct = wanted and engine.name() != "pread" and self._batches.open_direct()
            self.policy = replace(self.policy, direct=direct)
            return direct

    def use_blocks(self, size: int) -> None:
        """Read whole blocks of so many bytes when records must come from a disk; 0: only the records."""
        with self._lock:
            self.policy = replace(self.policy, around=size)

    # ------------------------------------------------------------ where records are

    @property
    def size(self) -> int:
        """The size of all files in bytes, when they were opened."""
        return sum(file.index.file_size for file in self.files)

    @property
    def index(self) -> JoinedIndex:
        """The positions and checksums of all records."""
        return self._index

    def locate(self, record: int) -> tuple[SourceFile, int]:
        """Return a record's file and its number there. Raises RecordIndexError."""
        return self._index.locate(record)

    def first_record(self, file: int) -> int:
        """Return the number of a file's first record."""
        return self._index.first_record(file)

    def length(self, record: int) -> int:
        """Return a record's length in bytes. ``record`` counts from 0 and is not checked."""
        return self._index.length(record)

    def lengths(self, indices: Indices) -> Int64Array:
        """Return the lengths of records in bytes: int64[k]. Raises RecordIndexError, TruncatedError."""
        return self._index.resolve(indices)[1]

    def checksum(self, record: int) -> int | None:
        """Return a record's stored checksum, or None if its file has none."""
        file, row = self._index.locate(record)
        return None if file.index.checksums is None else int(file.index.checksums[row])

    # ------------------------------------------------------------ whole records

    def read(self, indices: Indices) -> list[UInt8Array]:
        """Read records in one batch.

        Args:
            indices: record numbers, also repeated ones; each gets an array of its own.

        Returns:
            A 1-D writable uint8 array for each index, in this order. They share one buffer, which exists until the last
            array is freed: copy a record that is kept much longer than its batch.

        Raises:
            RecordIndexError, ChecksumError, TruncatedError, ReadError, ClosedError.

        """
        numbers, lengths = self._index.resolve(indices)
        padded = (lengths + (ALIGNMENT - 1)) & -ALIGNMENT
        ends = np.cumsum(padded)
        begins = ends - padded
        buffer = self._room(numbers, ends)
        # Made before the read, while the helper threads wake up.
        records = _cut(buffer, begins, lengths)
        self._fill(numbers, lengths, buffer, begins)
        return records

    def read_joined(self, indices: Indices) -> tuple[UInt8Array, Int64Array]:
        """Read records in one batch, like ``read``, consecutively into one buffer.

        Returns:
            The buffer, a 1-D writable uint8 array, and int64[k + 1]: record i is ``buffer[offsets[i]:offsets[i + 1]]``.

        """
        numbers, lengths = self._index.resolve(indices)
        offsets = _offsets(lengths)
        buffer = self._room(numbers, offsets)
        self._fill(numbers, lengths, buffer, offsets[:-1])
        return buffer, offsets

    def read_into(self, indices: Indices, out: UInt8Array) -> Int64Array:
        """Read records in one batch, like ``read``, consecutively into the start of ``out`` (1-D, writable).

        Returns:
            int64[k + 1]: record i is ``out[offsets[i]:offsets[i + 1]]``. Bytes behind the last record are not changed;
            after an exception, the content of ``out`` is unspecified.

        Raises:
            UsageError: ``out`` is too small; nothing was read.

        """
        numbers, lengths = self._index.resolve(indices)
        offsets = _offsets(lengths)
        if offsets[-1] > out.size:
            raise UsageError(f"the records have {offsets[-1]} bytes in total, but there is room for only {out.size}")
        self._fill(numbers, lengths, out, offsets[:-1])
        return offsets

    def prefetch(self, indices: Indices) -> None:
        """Start to read records that will be asked for. Raises RecordIndexError, ClosedError."""
        numbers, lengths = self._index.resolve(indices)
        with self.use():
            policy = self.policy
            if policy.direct:
                return
            if policy.around:  # several may be in one block
                numbers = np.sort(numbers)
                lengths = self._index.ends[numbers] - self._index.starts[numbers]
            self._batches.prefetch(self._batches.requests(numbers, lengths, policy), numbers)

    def _room(self, numbers: Int64Array, ends: Int64Array) -> UInt8Array:
        """Return memory for a batch of ``ends[-1]`` bytes, and wake up the helper threads."""
        size = int(ends[-1]) if len(ends) else 0
        lib.fffs_engine_expect(len(numbers), size)
        return room(size)

    def _fill(self, numbers: Int64Array, lengths: Int64Array, buffer: UInt8Array, begins: Int64Array) -> None:
        """Read records to their begins in a buffer. Raises the error of the first bad one."""
        with self.use():
            policy = self.policy
            requests = self._batches.requests(numbers, lengths, policy)
            # ndarray.ctypes.data takes two to three times as long.
            requests["dest"] = begins + int(ffi.cast(_ADDRESS, _from_buffer(_BYTES, buffer)))
            if len(numbers) and not self._batches.read(requests, numbers):
                bad = int(np.flatnonzero(requests["status"])[0])
                raise self._failure_of(int(numbers[bad]), requests[bad])
            if policy.check and self._unchecked:
                self._refuse_changed(numbers)

    def failure(self, number: int, status: int) -> Exception:
        """Return the exception for a record's status, -errno, from the engine."""
        return self._index.failure(number, status)

    def _failure_of(self, number: int, request: Any) -> Exception:
        return self._index.failure(number, *(int(request[name]) for name in ("status", "expected", "actual")))

    def _refuse_changed(self, numbers: Int64Array) -> None:
        """After a read: raise SourceChangedError if a file without checksums changed; the records may be wrong."""
        files = [0] if len(self.files) == 1 else distinct(self._index.files_of(numbers))
        for k in self._unchecked.intersection(files):
            if status := self.files[k].changed():
                raise self._index.failure(self._index.first_record(k), status)

    def _changed(self, numbers: Int64Array) -> list[tuple[int, Exception]]:
        """Return the failure of what ``_refuse_changed`` refuses."""
        try:
            if len(numbers) and self._unchecked:
                self._refuse_changed(numbers)
        except FffsError as error:
            return [(int(numbers[0]), error)]
        return []

    def read_one(self, record: int) -> UInt8Array:
        """Read one record: a 1-D writable uint8 array with memory of its own. Raises as ``read``."""
        # The whole call takes a few microseconds: each call and each attribute counts.
        index = self._index
        number = record if type(record) is int else as_number(record)
        if not 0 <= number < self.n:
            number = int(resolve([number], self.n)[0])
        if index.truncated:
            index.refuse_truncated((number,))
        offset = index.starts.item(number)
        length = index.ends.item(number) - offset
        buffer = room(length)
        descriptor, kind = self._reads[index.file_of(number) if len(self._reads) > 1 else 0]
        check = self.policy.check
        kind, expected = (kind, index.checksums.item(number)) if check else (CHECK_NONE, 0)
        self.begin_use()
        try:
            # Other files, and failures, take a batch of one, which raises the right error.
            status = descriptor < 0 or _read_one(
                descriptor, offset, length, _from_buffer(_BYTES, buffer), kind, expected
            )
            if check and kind == CHECK_NONE and descriptor >= 0:
                self._refuse_changed(np.array([number]))
        finally:
            self.end_use()
        if status:
            self._fill(np.array([number]), np.array([length]), buffer, np.zeros(1, np.int64))
        return buffer

    def verify(self, numbers: Int64Array) -> list[tuple[int, Exception]]:
        """Read and check records without keeping bytes. Returns the failures, each with its record number."""
        failures: list[tuple[int, Exception]] = []
        index = self._index
        if index.truncated:
            fits = np.fromiter((index.fits(int(i)) for i in numbers), bool, len(numbers))
            failures += [(int(i), index.truncation(int(i))) for i in numbers[~fits]]
            numbers = numbers[fits]
        with self.use():
            policy = replace(self.policy, check=True)
            requests = self._batches.requests(numbers, index.ends[numbers] - index.starts[numbers], policy)
            if not len(numbers) or self._batches.read(requests, numbers):
                return failures + self._changed(numbers)
        bad = np.flatnonzero(requests["status"]).tolist()
        return failures + [(int(numbers[i]), self._failure_of(int(numbers[i]), requests[i])) for i in bad]

    def copy_to(self, record: int, target: Writable, count: Callable[[int], None] | None = None) -> None:
        """Copy a record to the start of a new file through a bounded buffer, then compare its checksum.

        Args:
            record: its number, from 0.
            target: the new file.
            count: called with the number of bytes of each part; an exception ends the copy.

        Raises:
            ChecksumError: the file holds bad bytes and must be removed.
            TruncatedError, ReadError, WriteError, ClosedError.

        """
        if self._index.truncated:
            self._index.refuse_truncated((record,))
        source, row = self.locate(record)
        check = source.index.check
        start, length = int(source.index.starts[row]), self.length(record)
        whole = done = 0
        with self.use():
            while done < length:
                size = min(length - done, PIECE)
                status, crc = source.file.copy_to(target, done, start + done, size, check)
                if status == -errno.ENOMEM:
                    raise MemoryError("not enough memory to copy a record")
                if status != 0:
                    raise self._index.failure(record, status)
                whole = checksum_combine(check, whole, crc, size) if done else crc
                done += size
                if count:
                    count(size)
            if self._unchecked:
                self._refuse_changed(np.array([record]))
        if source.index.checksums is not None and whole != source.index.checksums[row]:
            raise self._index.failure(record, -errno.EBADMSG, int(source.index.checksums[row]), whole)

    def read_span(self, file: int, start: int, end: int) -> UInt8Array | None:
        """Return bytes of a file with several small records, which the caller verifies.

        None if there are fewer, they cannot be read, or the file has no checksums and changed: reading one of the
        records raises the error.
        """
        source, data = self.files[file], room(end - start)
        with self.use():
            try:
                complete = source.file.read_at(start, data) == len(data)
            except ReadError:
                return None
            return data if complete and not (file in self._unchecked and source.changed()) else None

    # ------------------------------------------------------------ ranges

    @property
    def native(self) -> Any:
        """Return the C store, for ranges read by C; only for local files. Raises ReadError, MemoryError."""
        return self._ranges.native

    @property
    def reads_ranges(self) -> bool:
        """Whether a range of a record is read without the rest of the record, once that was verified."""
        return self._in_c

    def watch(self) -> None:
        """Start to watch the files for changes, before the first range does. Raises ReadError.

        This queries their file systems; a remote one may not respond any more when a range is read.
        """
        if self._in_c:
            _ = self.native  # which is made now

    def read_range_into(
        self, record: int, start: int, dest: UInt8Array, *, wait: bool = True, fetch: bool = True
    ) -> int | None:
        """Fill ``dest`` with a range of a record; only with verified bytes, unless the policy does not check.

        For a file that is not local, the whole record is read.

        Args:
            record: its number, from 0.
            start: the offset in the record, in bytes.
            dest: uint8, contiguous and writable.
            wait: False: return None instead of waiting for a disk or checking a large record.
            fetch: False: return None instead of asking the store of an object.

        Returns:
            The number of bytes read: fewer only at the record's end. None if it would have to wait.

        Raises:
            RecordIndexError, ChecksumError, TruncatedError, SourceChangedError, ReadError, ClosedError.

        """
        if not self._in_c:
            return self._cut_into(record, start, dest) if wait and fetch else None
        how = (0 if wait else lib.FFFS_READ_NOWAIT) | (0 if fetch else lib.FFFS_READ_LOCAL)
        for _ in range(RANGE_TRIES):
            with self.use():
                got = self._ranges.read_into(record, start, dest, check=self.policy.check, how=how)
            if got >= 0:
                return got
            if how and got in (-errno.EAGAIN, -errno.EBADMSG):
                return None  # the error needs the whole record to be read again
            if got != -errno.EBADMSG:
                break
            # A range read does not return the computed checksum: the whole record is read again.
            if again := self.verify(np.array([record])):
                raise again[0][1]
        if got == -errno.ERANGE:
            raise RecordIndexError(f"there is no record {record}: there are {self.n}")
        raise self._index.failure(record, got, self.checksum(record) or 0)

    def _cut_into(self, record: int, start: int, dest: UInt8Array) -> int:
        part = self.read_one(record)[start : start + len(dest)]
        dest[: len(part)] = part
        return len(part)

    def read_range(self, record: int, start: int, stop: int) -> UInt8Array:
        """Return bytes ``start`` to ``stop`` of a record, clipped to it, as a new uint8 array.

        Raises as ``read_range_into``.
        """
        number = int(resolve([as_number(record)], self.n)[0])
        start, stop = as_number(start, "the bounds of a range"), as_number(stop, "the bounds of a range")
        if self._index.truncated:
            self._index.refuse_truncated((number,))
        length = self.length(number)
        start, stop = min(max(start, 0), length), min(max(stop, 0), length)
        dest = room(max(stop - start, 0))
        got = self.read_range_into(number, start, dest)
        return dest[: got or 0]

    def verified(self, record: int) -> bool:
        """Whether range reads have verified the whole record since the file last changed."""
        with self.use():
            return self._in_c and self._ranges.verified(record)

    def count_verified(self) -> int:
        """Return how many records that are not empty range reads have verified since their files changed."""
        with self.use():
            return self._ranges.count_verified() if self._in_c else 0
