"""The folder that is packed, held open; errors that name what is in it."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from fffs.errors import ReadError, SourceChangedError, SourceNotFoundError, UsageError
from fffs.files.dirfd import Ways, close


@dataclass(frozen=True)
class SourceFolder:
    """The folder that is packed, held open. Everything is reached from ``fd``, whatever is renamed during packing."""

    path: bytes
    fd: int
    ways: Ways
    real: bytes  # its path without symbolic links

    def shown(self, path: bytes) -> str:
        """Return the name of a path in the folder for messages."""
        return os.fsdecode(os.path.join(self.path, path) if path else self.path)

    def failure(self, error: OSError, path: bytes) -> Exception:
        """Return the exception for something in the folder that cannot be read."""
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return SourceChangedError(
                f"{self.shown(path)}: vanished while the folder was packed; pack it when nothing changes it"
            )
        return ReadError(error.errno, self.shown(path))


@contextlib.contextmanager
def open_source(folder: bytes) -> Iterator[SourceFolder]:
    """Open the folder that is to be packed for the duration of the block.

    Raises:
        SourceNotFoundError, UsageError: the path does not exist, or is not a folder.
        ReadError: the folder cannot be read.

    """
    try:
        if not stat.S_ISDIR(os.stat(folder).st_mode):
            raise UsageError(f"{os.fsdecode(folder)}: not a folder")
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise SourceNotFoundError(f"{os.fsdecode(folder)}: no such folder") from None
    except OSError as error:
        raise ReadError(error.errno, os.fsdecode(folder)) from error
    ways = Ways(fd)
    try:
        yield SourceFolder(folder, fd, ways, os.path.realpath(folder))
    finally:
        ways.close()
        close(fd)
