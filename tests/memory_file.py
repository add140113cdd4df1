"""MemoryFile: a File whose bytes are in memory, the simplest one without a descriptor."""

from __future__ import annotations

import errno

import numpy as np
from inside import File, UInt8Array

from fffs.errors import ReadError


class MemoryFile(File):
    """Implements only what every File must. ``reads`` counts reads; reads after number ``fails_at`` fail."""

    def __init__(self, name: str, data: bytes) -> None:
        super().__init__(name, len(data))
        self._data = np.frombuffer(data, np.uint8)
        self.reads, self.closed = 0, False
        self.fails_at = len(data) + 1

    def read_at(self, offset: int, dest: UInt8Array, detail: str = "") -> int:
        assert not self.closed, "read after it was closed"
        self.reads += 1
        part = self._data[offset : offset + len(dest)]
        if offset + len(part) > self.fails_at:
            raise ReadError(errno.EIO, self.name, detail)
        dest[: len(part)] = part
        return len(part)

    def close(self) -> None:
        self.closed = True
