"""FlushMarker: a file that says which numbers of rows a killed writer of a data set may have left in its columns."""

from __future__ import annotations

import contextlib
import errno
import os
import struct

from fffs.base.descriptors import above_standard
from fffs.base.failures import reading, writing
from fffs.errors import WriteError
from fffs.files.atomic import sync_place
from fffs.files.dirfd import close
from fffs.files.file_systems import is_of_this_machine
from fffs.files.pwrite import NewFile, write_at
from fffs.files.rights import Rights

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
    one sector.
    """

    def __init__(self, folder: int, path: str) -> None:
        """folder: that of the data set, which the caller closes. path: its name in messages."""
        self._folder, self._path = folder, os.path.join(path, NAME)
        self._fd = -1

    def read(self) -> range:
        """Return the numbers of rows that a killed writer may have left in a column; none if there is no marker.

        One that may not be read says nothing. Raises ReadError.
        """
        with reading(self._path):
            try:
                fd = above_standard(os.open(NAME, os.O_RDONLY | _FLAGS, dir_fd=self._folder))
            except (FileNotFoundError, PermissionError):
                return range(0)
            try:
                content = os.read(fd, _CONTENT.size)
            finally:
                close(fd)
        if len(content) < _CONTENT.size or not content.startswith(_MAGIC):
            return range(0)  # killed before the first flush
        _, before, after = _CONTENT.unpack(content)
        return range(before, after + 1)

    def create(self, rows: int, rights: Rights) -> None:
        """Make the file, for columns that all have this number of rows. In a folder in which it may not be made, there
        is none; if the writer is killed in a flush, the next one then needs ``cut_to=``. Raises WriteError.

        rights: those of the file.
        """
        try:
            with writing(self._path):
                self._fd = above_standard(self._open())
                rights.give(self._fd, 0o600)
        except WriteError as error:
            if error.errno in (errno.EACCES, errno.EPERM):
                return
            raise
        self._write(rows, rows)
        if not is_of_this_machine(self._fd):  # where it is, the first flush makes the name durable as well
            with writing(self._path):
                sync_place(self._folder)

    def _open(self) -> int:
        """Create the file, or open that of a killed writer, if it is another user's in a sticky folder."""
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(NAME, dir_fd=self._folder)
        except PermissionError:
            return os.open(NAME, os.O_WRONLY | _FLAGS, dir_fd=self._folder)
        return os.open(NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600, dir_fd=self._folder)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The descriptor of the file, if there is one."""
        return (self._fd,) if self._fd >= 0 else ()

    def begin_flush(self, before: int, after: int) -> None:
        """Write how the flush changes the number of rows. The caller syncs the file. Raises WriteError."""
        if self._fd >= 0:
            self._write(before, after)

    def end_flush(self, rows: int) -> None:
        """Write that all columns have this number of rows. If that fails, or a power failure undoes it, the range that
        is there has this number as well.
        """
        if self._fd >= 0:
            with contextlib.suppress(WriteError):
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
