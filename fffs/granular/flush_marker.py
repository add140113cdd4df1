"""FlushMarker: a file that says which numbers of rows a killed writer of a data set may have left in its columns."""

from __future__ import annotations

import contextlib
import os
import struct

from fffs.base.descriptors import above_standard
from fffs.base.failures import reading, writing
from fffs.files.atomic import sync_place
from fffs.files.dirfd import close
from fffs.files.pwrite import NewFile, write_at

NAME = "unfinished.fffs"
_MAGIC = b"fffsROWS"
_CONTENT = struct.Struct("<8s2Q")
_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def is_marked(folder: str) -> bool:
    """Return whether a writer is appending to the data set in a folder, or was killed."""
    return os.path.lexists(os.path.join(folder, NAME))


class FlushMarker:
    """A file in the folder of a data set that exists while a writer appends. Not thread-safe.

    The tables of columns are written one after another, so a killed writer may leave different numbers of rows in them.
    The file has the numbers before and after the flush in progress, which are the same if there is none: a number
    outside this range has another cause. The file is overwritten in place, which is atomic because its content is in
    one sector; this needs no new space on the disk.
    """

    def __init__(self, folder: int, path: str) -> None:
        """folder: that of the data set, which the caller closes. path: its name in messages."""
        self._folder, self._path = folder, os.path.join(path, NAME)
        self._fd = -1

    def read(self) -> range:
        """Return the numbers of rows that a killed writer may have left in a column; none if there is no marker.

        Raises ReadError.
        """
        with reading(self._path):
            try:
                fd = above_standard(os.open(NAME, os.O_RDONLY | _FLAGS, dir_fd=self._folder))
            except FileNotFoundError:
                return range(0)
            try:
                content = os.read(fd, _CONTENT.size)
            finally:
                close(fd)
        if len(content) < _CONTENT.size or not content.startswith(_MAGIC):
            return range(0)  # killed before the first flush
        _, before, after = _CONTENT.unpack(content)
        return range(before, after + 1)

    def create(self, rows: int) -> None:
        """Make the file, durably, for columns that all have this number of rows. Raises WriteError."""
        with writing(self._path):
            with contextlib.suppress(FileNotFoundError):  # that of a killed writer, who may be another user
                os.unlink(NAME, dir_fd=self._folder)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS
            self._fd = above_standard(os.open(NAME, flags, 0o666, dir_fd=self._folder))
        self.begin_flush(rows, rows)
        with writing(self._path):
            sync_place(self._folder)

    def begin_flush(self, before: int, after: int) -> None:
        """Write durably how the flush changes the number of rows. Raises WriteError."""
        self._write(before, after)
        with writing(self._path):
            os.fdatasync(self._fd)

    def end_flush(self, rows: int) -> None:
        """Write that all columns have this number of rows. A power failure may undo that, which does no harm while it
        is true. Raises WriteError.
        """
        self._write(rows, rows)

    def _write(self, before: int, after: int) -> None:
        write_at(NewFile(self._fd, self._path), [_CONTENT.pack(_MAGIC, before, after)], 0)

    def remove(self) -> None:
        """Remove the file if ``create`` made it, when all columns have the same rows. If that fails, it stays."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.unlink(NAME, dir_fd=self._folder)

    def close(self) -> None:
        """Close the file. May be called again."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            close(fd)
