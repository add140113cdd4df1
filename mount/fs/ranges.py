"""Ranges of records for the event loop: what is in the page cache is read at once, what is not waits in a thread."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
import trio

from fffs.layouts.rows import File
from fffs.native import lib
from fffs.records.store import RecordStore

LARGEST_READ = int(lib.FFFS_READ_MAX)


class Ranges:
    """Reads ranges of records. For the thread of the event loop."""

    def __init__(self, store: RecordStore, check: bool) -> None:
        """check: give out only verified bytes."""
        self._store, self._check = store, check
        self._limiters = {file.fd: trio.CapacityLimiter(lib.FFFS_FAST_LANE) for file in store.files}
        self._buffer = np.empty(LARGEST_READ, np.uint8)

    def limiter(self, record: int) -> trio.CapacityLimiter:
        """How many threads may wait for the record's file."""
        return self._limiters[self._store.locate(record)[0].fd]

    async def read(self, record: int, start: int, size: int) -> npt.NDArray[np.uint8]:
        """Bytes of a record: fewer than size only at its end, and valid until the next read.

        Raises:
            RecordError, ReadError, SourceChangedError.

        """
        read = functools.partial(self._store.read_range_into, record, start, check=self._check)
        # One buffer serves all reads that do not wait: pyfuse3 has passed it on before the loop runs anything else.
        dest = self._buffer[:size] if size <= LARGEST_READ else np.empty(size, np.uint8)
        got = read(dest=dest, wait=False)
        if got is None:
            dest = np.empty(size, np.uint8)
            limiter = self.limiter(record)
            got = await trio.to_thread.run_sync(functools.partial(read, dest=dest, wait=True), limiter=limiter)
        return dest[: got or 0]

    async def read_file(self, file: File, start: int, size: int) -> bytes:
        """Bytes of a file that is decoded, as ``read``."""
        head = file.prefix[start : start + size]
        begin = max(start - len(file.prefix), 0)
        count = min(size - len(head), file.length - begin)
        if count <= 0:
            return head
        tail = await self.read(file.record, file.start + begin, count)
        return head + tail.tobytes() if head else tail  # type: ignore[return-value] # pyfuse3 takes any buffer
