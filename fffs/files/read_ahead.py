"""ReadAhead: a file whose requests are slow, read in large pieces of which the next ones are requested early."""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import numpy as np

from fffs.files.file import File, UInt8Array

_BLOCK: Final = 8 << 20
_EARLY: Final = 4
"""Blocks that are requested before they are needed, when a file is read from its start to its end."""
_KEPT: Final = 12


class ReadAhead(File):
    """Another file, which it owns. Keeps at most 12 blocks of 8 MiB. Thread-safe; not for a child of fork."""

    def __init__(self, file: File) -> None:
        super().__init__(file.name, file.size)
        self.mtime_ns, self.tag, self.place = file.mtime_ns, file.tag, file.place
        self._file = file
        self._pool = ThreadPoolExecutor(_EARLY)
        self._blocks: OrderedDict[int, Future[UInt8Array]] = OrderedDict()
        self._last = -1
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the file, when nothing reads from it any more."""
        self._pool.shutdown(cancel_futures=True)
        self._blocks.clear()
        self._file.close()

    def read_at(self, offset: int, dest: UInt8Array, detail: str = "") -> int:
        """Copy from blocks, which are requested if they were not yet."""
        done, size = 0, max(min(len(dest), self.size - offset), 0)
        while done < size:
            number, place = divmod(offset + done, _BLOCK)
            part = self._block(number).result()[place : place + size - done]
            dest[done : done + len(part)] = part
            done += len(part)
        return done

    def _block(self, number: int) -> Future[UInt8Array]:
        with self._lock:
            early = _EARLY if number in (self._last, self._last + 1) else 0
            self._last = max(number, self._last) if early else number
            found = self._blocks.get(number)
            for wanted in range(number, min(number + 1 + early, -(-self.size // _BLOCK))):
                if wanted not in self._blocks:
                    self._blocks[wanted] = self._pool.submit(self._read, wanted)
                self._blocks.move_to_end(wanted)
            found = found or self._blocks[number]
            while len(self._blocks) > _KEPT:
                self._blocks.popitem(last=False)
            return found

    def _read(self, number: int) -> UInt8Array:
        begin = number * _BLOCK
        data = np.empty(min(_BLOCK, self.size - begin), np.uint8)
        got = self._file.read_at(begin, data)
        return data[:got]

    def failure(self, status: int, detail: str = "") -> Exception:
        """As the file does."""
        return self._file.failure(status, detail)

    def stamp(self) -> Any:
        """As the file does."""
        return self._file.stamp()

    def changed(self, stamp: Any) -> int:
        """As the file does."""
        return self._file.changed(stamp)
