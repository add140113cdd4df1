"""Reads for the event loop: bytes in the page cache are read at once; reads from a disk and decoding run in threads."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import trio

from fffs.layouts.rows import FileContent
from fffs.layouts.view import CAPACITY, NotDecoded, View
from fffs.mount.fs.waiting import in_thread
from fffs.native import lib
from fffs.native.engine import take
from fffs.records.source_file import disks_of

LARGEST_READ = int(lib.FFFS_READ_MAX)
LARGE = CAPACITY // 4  # bytes of a record from which on it is decoded alone


class Reading:
    """Reads the bytes of a view's files. Used by the thread of the event loop.

    Raises:
        RecordError, ReadError, AccessError, SourceChangedError, SourceNotFoundError, MemoryError.

    """

    def __init__(self, view: View) -> None:
        self._view, self._store = view, view.store
        disks = disks_of(view.store.files)
        limiters = [trio.CapacityLimiter(lib.FFFS_FAST_LANE) for _ in set(disks)]
        self._limiters = {file.file: limiters[disk] for file, disk in zip(view.store.files, disks, strict=True)}
        self._caches = trio.CapacityLimiter(
            lib.FFFS_FAST_LANE
        )  # of threads that wait for the disk of caches of objects
        self._buffer = np.empty(LARGEST_READ, np.uint8)
        self._decoding: dict[int, trio.Event] = {}
        self._large = trio.Lock()

    def _limiter(self, record: int) -> trio.CapacityLimiter:
        """Return the limiter of the threads that wait for the disk of the record's file."""
        return self._limiters[self._store.locate(record)[0].file]

    async def decode(self, missing: NotDecoded) -> None:
        """Decode an item, once for all requests that wait for it."""
        if missing.number in self._decoding:
            return await self._decoding[missing.number].wait()
        self._decoding[missing.number] = trio.Event()
        decode, limiter = functools.partial(self._view.decode, missing.number), self._limiter(missing.record)
        try:
            size = self._store.length(missing.record)
            if size < LARGE:
                item = await in_thread(decode, limiter=limiter)
            else:
                # One large item is decoded at a time, to limit memory. A disk that does not answer must not hold the
                # lock: the record is read into the page cache before, unless it will be refused for its size.
                if size <= CAPACITY:
                    await in_thread(functools.partial(self._store.verify, np.array([missing.record])), limiter=limiter)
                async with self._large:
                    item = await in_thread(decode, limiter=limiter)
            self._view.keep(missing.number, item)
        finally:
            self._decoding.pop(missing.number).set()

    async def read(self, file: FileContent, start: int, size: int) -> Any:
        """Return bytes of a file: fewer than size only at its end. The buffer is valid until the next read."""
        prefix, record, first, length, _ = file
        head = prefix[start : start + size]
        begin = max(start - len(prefix), 0)
        count = min(size - len(head), length - begin)
        if count <= 0:
            return head
        # All reads that do not wait share one buffer: pyfuse3 writes it to the kernel before the loop runs other tasks.
        dest = self._buffer[:count] if count <= LARGEST_READ else np.empty(count, np.uint8)
        got = self._store.read_range_into(record, first + begin, dest, wait=False)
        if got is None:
            # From the pool: what threads allocate and the event loop frees otherwise leaves free memory in many arenas.
            dest = take(count)
            read = functools.partial(self._store.read_range_into, record, first + begin, dest)
            # What the cache has must not wait behind reads of a store that does not answer.
            if self._store.locate(record)[0].file.is_remote:
                got = await in_thread(functools.partial(read, fetch=False), limiter=self._caches)
            if got is None:
                got = await in_thread(read, limiter=self._limiter(record))
        tail = dest[: got or 0]
        return head + tail.tobytes() if head else tail
