"""Cached: which records of a file of equal records are in the page cache."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
import pytest
from engine_model import cached_pages, tells_what_is_cached, wait_until

from fffs import FileReader, FileWriter


class Cached:
    """Tells which records of a file of equal records are in the page cache; at first none are."""

    def __init__(self, path: Path, count: int, size: int) -> None:
        if not tells_what_is_cached(str(path.parent)):
            pytest.skip("this file system does not tell what is in memory")
        with FileWriter(path, count) as writer:
            for i in range(count):
                writer.write_one(bytes([i]) * size)
        with FileReader(path) as reader:
            self._starts = reader.index().starts.tolist()
        self._size, self._fd = size, os.open(path, os.O_RDONLY)
        self._bytes = np.frombuffer(mmap.mmap(self._fd, 0, prot=mmap.PROT_READ), np.uint8)
        self.drop()

    def drop(self) -> None:
        os.fsync(self._fd)
        wait_until(self._is_dropped)  # pages that are still being read cannot be dropped

    def _is_dropped(self) -> bool:
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return not any(record in self for record in range(len(self._starts)))

    def __contains__(self, record: int) -> bool:
        first = self._starts[record] // mmap.PAGESIZE * mmap.PAGESIZE
        asked = self._bytes[first : self._starts[record] + self._size]
        return bool(cached_pages(asked.ctypes.data, len(asked)).all())

    def close(self) -> None:
        os.close(self._fd)
