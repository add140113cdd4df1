"""Reads for the event loop: what is in the page cache is read at once, and what is not, or has to be decoded, waits in
a thread.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import trio

from fffs.layouts.rows import File
from fffs.layouts.view import CAPACITY, NotDecoded, View
from fffs.native import lib

LARGEST_READ = int(lib.FFFS_READ_MAX)
LARGE = CAPACITY // 4  # bytes of a record that is decoded while no other is

# When a mount ends, nobody waits for a disk any more that may never answer.
in_thread = functools.partial(trio.to_thread.run_sync, abandon_on_cancel=True)


class Reading:
    """Reads what the files of a view are made of. For the thread of the event loop.

    Raises:
        RecordError, ReadError, SourceChangedError, MemoryError.

    """

    def __init__(self, view: View) -> None:
        self._view, self._store = view, view.store
        self._limiters = {file.file: trio.CapacityLimiter(lib.FFFS_FAST_LANE) for file in view.store.files}
        self._buffer = np.empty(LARGEST_READ, np.uint8)
        self._decoding: dict[int, trio.Event] = {}
        self._large = trio.Lock()

    def _limiter(self, record: int) -> trio.CapacityLimiter:
        """How many threads may wait for the record's file."""
        return self._limiters[self._store.locate(record)[0].file]

    async def decode(self, missing: NotDecoded) -> None:
        """Decode an item, once for all who ask for it at a time."""
        if missing.number in self._decoding:
            return await self._decoding[missing.number].wait()
        self._decoding[missing.number] = trio.Event()
        decode, limiter = functools.partial(self._view.decode, missing.number), self._limiter(missing.record)
        try:
            if self._store.length(missing.record) < LARGE:
                item = await in_thread(decode, limiter=limiter)
            else:
                async with self._large:
                    item = await in_thread(decode, limiter=limiter)
            self._view.keep(missing.number, item)
        finally:
            self._decoding.pop(missing.number).set()

    async def read(self, file: File, start: int, size: int) -> Any:
        """Bytes of a file, in any buffer: fewer than size only at its end, and valid until the next read."""
        head = file.prefix[start : start + size]
        begin = max(start - len(file.prefix), 0)
        count = min(size - len(head), file.length - begin)
        if count <= 0:
            return head
        tail = await self._read_record(file.record, file.start + begin, count)
        return head + tail.tobytes() if head else tail

    async def _read_record(self, record: int, start: int, size: int) -> Any:
        read = functools.partial(self._store.read_range_into, record, start)
        # One buffer serves all reads that do not wait: pyfuse3 has passed it on before the loop runs anything else.
        dest = self._buffer[:size] if size <= LARGEST_READ else np.empty(size, np.uint8)
        got = read(dest=dest, wait=False)
        if got is None:
            dest = np.empty(size, np.uint8)
            whole = functools.partial(read, dest=dest, wait=True)
            got = await in_thread(whole, limiter=self._limiter(record))
        return dest[: got or 0]
