"""HostFile: a file of a Host that an archive is opened from."""

from __future__ import annotations

import io
import itertools
import weakref
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from fffs.errors import SourceChangedError
from fffs.files.file import FileStream, UInt8Array
from fffs.files.fsspec_host import Host, ask
from fffs.files.fsspec_info import size_of, version_of

_numbers: Final[Iterator[int]] = itertools.count()


class HostFile:
    """A file of a Host that an archive is opened from: one file object of its file system in each process."""

    def __init__(self, host: Host, path: str, name: str) -> None:
        """Ask for size and version. name: for messages. Raises what the file system raises, and as ``size_of``."""
        info = host.use(path, lambda fs: ask(fs, path))
        self.size, self._version, self._name = size_of(info, name), version_of(info), name
        self._host, self._path, self._number = host, path, next(_numbers)
        self._was_open = False
        weakref.finalize(self, host.release, self._number).atexit = False

    def read_at(self, offset: int, dest: UInt8Array, /) -> int:
        """See ``Readable``. Raises what the file system raises, and SourceChangedError."""
        end = min(offset + len(dest), self.size)
        data = self._host.read(self._number, self._path, self._require_same, offset, end)
        dest[: len(data)] = np.frombuffer(data, np.uint8)
        return len(data)

    def _require_same(self, fs: Any) -> None:
        # Who opens an archive has asked for its version before, and asks again.
        if self._was_open and version_of(ask(fs, self._path)) != self._version:
            raise SourceChangedError(f"{self._name}: its archive was replaced while it was open; open it again")
        self._was_open = True

    def stream(self) -> io.RawIOBase:
        """Return a file object, which keeps this one alive."""
        return FileStream(self)
