"""SharedBuffer: bytes in shared memory, which several processes can read. BufferFile: such bytes as a File."""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import tempfile
import weakref
from typing import Any

import numpy as np

from fffs.base.buffers import readable_bytes
from fffs.base.descriptors import above_standard
from fffs.files.file import File, UInt8Array

MEMORY = "/dev/shm"


class SharedBuffer:
    """A copy of bytes that this process shares with those which get the object, pickled. It is removed by ``close``, or
    when the process that made it drops it or ends. Thread-safe.
    """

    def __init__(self, content: Any) -> None:
        """content: any C-contiguous buffer. Raises OSError."""
        data = readable_bytes(content)
        fd, self._path = tempfile.mkstemp(prefix="fffs-", dir=MEMORY if os.path.isdir(MEMORY) else None)
        self._remove = weakref.finalize(self, _remove, self._path, os.getpid())
        with open(above_standard(fd), "wb") as file:
            file.write(data)
        self.size = data.nbytes
        self._map()

    def _map(self) -> None:
        self.buf: memoryview | None = memoryview(b"")
        if self.size:
            with open(self._path, "rb") as file:
                self.buf = memoryview(mmap.mmap(file.fileno(), self.size, access=mmap.ACCESS_READ))

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self.buf is None

    def __getitem__(self, index: int | slice) -> Any:
        if self.buf is None:
            raise ValueError("the buffer has been closed")
        return self.buf[index]

    def open(self, mode: str = "rb", buffering: int = -1) -> io.BytesIO:
        """Return a file object with a copy of the bytes. mode: "rb"."""
        if mode != "rb":
            raise ValueError(f"a shared buffer can only be read, not opened with mode {mode!r}")
        return io.BytesIO(self[:])

    def close(self) -> None:
        """Give up the bytes, also for other processes if this one made them. May be called again."""
        self.buf = None
        self._remove()

    def __getstate__(self) -> tuple[str, int]:
        return self._path, self.size

    def __setstate__(self, state: tuple[str, int]) -> None:
        self._path, self.size = state
        self._remove = weakref.finalize(self, _remove, self._path, 0)
        self._map()


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:
        with contextlib.suppress(OSError):
            os.unlink(path)


class BufferFile(File):
    """Bytes in memory. Several may share a buffer; closing one leaves it open."""

    def __init__(self, name: str, buffer: SharedBuffer) -> None:
        super().__init__(name, buffer.size)
        self._data = np.frombuffer(buffer[:], np.uint8)

    def read_at(self, offset: int, dest: UInt8Array, detail: str = "") -> int:
        """As in the base class."""
        part = self._data[offset : offset + len(dest)]
        dest[: len(part)] = part
        return len(part)

    def close(self) -> None:
        """Do nothing."""
