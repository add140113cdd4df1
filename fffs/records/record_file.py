"""RecordFile: a record as a binary file object, for code that reads files."""

from __future__ import annotations

import io
from typing import Any, Final

import numpy as np

from fffs.records.store import RecordStore

BUFFER: Final = 1 << 20  # bytes that are read at a time, at most


class _RawRecord(io.RawIOBase):
    """A record without a buffer. Reads only verified bytes."""

    def __init__(self, store: RecordStore, record: int, name: str) -> None:
        super().__init__()
        self._store, self._record, self._place = store, record, 0
        self._whole: Any = None
        self.size, self.name, self.mode = store.length(record), name, "rb"

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._check()
        place = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self.size}[whence] + offset
        if place < 0:
            raise ValueError(f"negative seek position {place}")
        self._place = place
        return place

    def tell(self) -> int:
        self._check()
        return self._place

    def readinto(self, buffer: Any, /) -> int:
        self._check()
        dest = np.frombuffer(buffer, np.uint8)[: max(self.size - self._place, 0)]
        if not len(dest):
            return 0
        if self._store.reads_ranges:
            got = self._store.read_range_into(self._record, self._place, dest) or 0
        else:
            if self._whole is None:
                self._whole = self._store.read_one(self._record)
            dest[:] = self._whole[self._place : self._place + len(dest)]
            got = len(dest)
        self._place += got
        return got

    def readall(self) -> bytes:
        """Read the rest at once: the default reads 8 KiB after 8 KiB."""
        rest = np.empty(max(self.size - self._place, 0), np.uint8)
        return rest[: self.readinto(rest)].tobytes()

    def _check(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")


class RecordFile(io.BufferedReader):
    """A record as a buffered binary file object, which can seek. ``size`` is its length in bytes, ``name`` its name.

    Raises what the store raises when it reads. Not thread-safe, as any file object.
    """

    def __init__(self, store: RecordStore, record: int, name: str) -> None:
        raw = _RawRecord(store, record, name)
        self.size = raw.size
        super().__init__(raw, max(min(BUFFER, raw.size), 1))
