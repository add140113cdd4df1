"""WebFile: a file of a web server that an archive is opened from."""

from __future__ import annotations

import io
from typing import Final

import numpy as np

from fffs.files.file import FileStream, UInt8Array
from fffs.files.fsspec_connection import Connection
from fffs.files.fsspec_info import kind_of, size_of

_FIRST: Final = 256 << 10  # bytes of a request, at least
_MOST: Final = 8 << 20  # the same, where one request continues the one before
_WHOLE: Final = 5 << 20  # bytes of an archive that is read with one request


class WebFile:
    """A file of a web server that an archive is opened from. For one thread at a time.

    That of fsspec takes a page, which a server sends in place of a range for a moment, for the bytes of the file, and
    keeps them.
    """

    def __init__(self, connection: Connection, name: str) -> None:
        """Ask for the size. name: for messages. Raises what the file system raises, and as ``size_of``."""
        self.size = size_of(connection.ask(), name)
        self._connection = connection
        self._begin, self._bytes, self._ahead = 0, b"", _FIRST

    def read_at(self, offset: int, dest: UInt8Array, /) -> int:
        """See ``Readable``. Raises what the file system raises, and OSError: what came is not what was asked for."""
        wanted = min(len(dest), max(self.size - offset, 0))
        if wanted and not self._begin <= offset <= offset + wanted <= self._begin + len(self._bytes):
            self._fetch(offset, wanted)
        if wanted:
            dest[:wanted] = np.frombuffer(self._bytes, np.uint8, wanted, offset - self._begin)
        return wanted

    def _fetch(self, begin: int, wanted: int) -> None:
        """Read what is wanted, and more of what follows. What is there already is not asked for again."""
        if self.size <= _WHOLE:
            self._begin, self._bytes = 0, self._ask(0, self.size)
            return
        there = self._begin + len(self._bytes)
        follows = self._begin <= begin <= there + self._ahead
        self._ahead = min(2 * self._ahead, _MOST) if follows else _FIRST
        known = self._bytes[begin - self._begin :] if self._begin <= begin < there else b""
        end = min(max(begin + wanted, begin + len(known) + self._ahead), self.size)
        self._begin, self._bytes = begin, known + self._ask(begin + len(known), end)

    def _ask(self, begin: int, end: int) -> bytes:
        [data] = self._connection.cat_ranges([(begin, end)])
        if isinstance(data, Exception):
            raise data
        if not isinstance(data, bytes) or len(data) != end - begin:
            came = f"{len(data)} bytes" if isinstance(data, bytes) else kind_of(data)
            raise OSError(f"its server sent {came} for a range of {end - begin}")
        return data

    def stream(self) -> io.RawIOBase:
        """Return a file object, which keeps this one alive."""
        return FileStream(self)
