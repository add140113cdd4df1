"""FsspecCopy: a file of a file system of fsspec, read from a copy: for ``simplecache::`` and ``filecache::``.

fsspec names its own copies by the path in the file system within alone, takes one that is not complete for the file,
and removes those of a parent when its child ends. None of its copies is used, wherever in a URL they stand.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy.typing as npt

from fffs.base.descriptors import above_standard
from fffs.base.paths import current_folder
from fffs.errors import ReadError
from fffs.files.dirfd import close
from fffs.files.file import UInt8Array
from fffs.files.fsspec_connection import Connection
from fffs.files.fsspec_file import FsspecFile
from fffs.files.fsspec_info import size_of, tells_version, version_of
from fffs.files.local import LocalFile

MOST: Final = 16  # copies that stay when they are closed: commands open a file several times

_Key = tuple[str, str, str]


class _Kept:
    """The descriptors of the copies that were opened last. Children of fork have them, too."""

    def __init__(self) -> None:
        self._found: OrderedDict[_Key, int] = OrderedDict()
        self._lock = threading.Lock()

    def after_fork_in_child(self) -> None:
        self._lock = threading.Lock()

    def find(self, key: _Key) -> int | None:
        """Return a descriptor of a copy, which the caller closes, or None. Raises OSError."""
        with self._lock:
            if key not in self._found:
                return None
            self._found.move_to_end(key)
            return above_standard(os.dup(self._found[key]))

    def keep(self, key: _Key, fd: int) -> None:
        """Keep a copy. Raises OSError."""
        with self._lock:
            if key not in self._found:
                self._found[key] = above_standard(os.dup(fd))
            while len(self._found) > MOST:
                close(self._found.popitem(last=False)[1])


_kept: Final = _Kept()
os.register_at_fork(after_in_child=_kept.after_fork_in_child)


class FsspecCopy(FsspecFile):
    """A file that is read from a complete copy without a name, which children of fork have open, too.

    Objects of one version of a file share a copy, if it has a key, and its file system tells versions.
    """

    def __init__(self, connection: Connection, name: str, secrets: Sequence[str] = (), key: str | None = None) -> None:
        """As of ``FsspecFile``. key: what tells the file from all others, a URL. Raises as ``FsspecFile``."""
        self._key = key
        self._copy: LocalFile | None = None
        super().__init__(connection, name, secrets)

    def measure(self, info: dict[str, Any]) -> int:
        """Make the copy, and return its size. Raises SourceChangedError, too: the file was replaced meanwhile."""
        told = None if info.get("size") is None else size_of(info, self.name)
        # The path of an archive may be relative to the current folder.
        key = (current_folder(), self._key or "", repr(sorted(self.version.items())))
        is_shared = self._key is not None and tells_version(info)
        with self.asking("copying it"):
            fd = _kept.find(key) if is_shared else None
            self._copy = LocalFile(self._download() if fd is None else fd, self.name)
            try:
                if told not in (None, self._copy.size):
                    raise ReadError(errno.EIO, self.name, f"{self._copy.size} bytes of {told} came")
                if fd is None and version_of(self._info()) != self.version:
                    raise self.failure(errno.ESTALE)
                if fd is None and is_shared:
                    _kept.keep(key, self._copy.descriptor)
            except BaseException:
                self._copy.close()
                raise
        return self._copy.size

    def _download(self) -> int:
        """Return the descriptor of a new copy. Raises what the file system raises."""
        fd, path = tempfile.mkstemp(prefix="fffs-")
        try:
            close(fd)
            self._connection.use(lambda fs, source: fs.get_file(source, path))
            return above_standard(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        finally:
            os.unlink(path)

    @property
    def _local(self) -> LocalFile:
        assert self._copy is not None
        return self._copy

    def close(self) -> None:
        """As in the base class."""
        super().close()
        if self._copy is not None:
            self._copy.close()

    def read_at(self, offset: int, dest: UInt8Array, detail: str = "") -> int:
        """From the copy."""
        return self._local.read_at(offset, dest, detail)

    def read_checked(self, offset: int, dest: UInt8Array, crc: int | None = None) -> tuple[int, int]:
        """From the copy."""
        return self._local.read_checked(offset, dest, crc)

    def read_batch(self, requests: npt.NDArray[Any]) -> bool:
        """From the copy."""
        requests["fd"] = self._local.descriptor
        return self._local.read_batch(requests)

    def changed(self, stamp: Any) -> int:
        """0: nothing that is read changes, and it was read to its end."""
        return 0

    @contextlib.contextmanager
    def local(self) -> Iterator[int]:
        """Yield the descriptor of the copy."""
        yield self._local.descriptor
