"""The folder that is packed, held open; errors that name what is in it."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from fffs.base.descriptors import above_standard
from fffs.base.paths import without_zero
from fffs.errors import ReadError, SourceChangedError, SourceNotFoundError, UsageError
from fffs.files.dirfd import Ways, close

Unreadable = ReadError | SourceChangedError
LeaveOut = Callable[[Unreadable], None]
"""Called with the error of what is left out."""

# Errors of this machine, not of the input: it could be read otherwise.
_OURS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


@dataclass(frozen=True)
class SourceFolder:
    """The folder that is packed, held open. Everything is reached from ``fd``, whatever is renamed during packing.

    ``leave_out``: what cannot be read is left out, and this is called; None: it is an error.
    """

    path: bytes
    fd: int
    ways: Ways
    real: bytes  # its path without symbolic links
    leave_out: LeaveOut | None = None

    def shown(self, path: bytes) -> str:
        """Return the name of a path in the folder for messages."""
        return os.fsdecode(os.path.join(self.path, path) if path else self.path)

    def fail(self, error: OSError, path: bytes) -> None:
        """Leave out something in the folder that cannot be read, or raise its exception."""
        failure = self.failure(error, path)
        if not path or not self.can_leave_out(error):
            raise failure from error
        assert self.leave_out
        self.leave_out(failure)

    def can_leave_out(self, error: OSError) -> bool:
        """Whether something with this error is left out."""
        return self.leave_out is not None and error.errno not in _OURS

    def failure(self, error: OSError, path: bytes) -> Unreadable:
        """Return the exception for something in the folder that cannot be read."""
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return SourceChangedError(
                f"{self.shown(path)}: vanished while the folder was packed; pack it when nothing changes it"
            )
        return ReadError(error.errno, self.shown(path))


@contextlib.contextmanager
def open_source(folder: bytes, leave_out: LeaveOut | None = None) -> Iterator[SourceFolder]:
    """Open the folder that is to be packed for the duration of the block. leave_out: as of ``SourceFolder``.

    Raises:
        SourceNotFoundError, UsageError: the path does not exist, or is not a folder.
        ReadError: the folder cannot be read.

    """
    without_zero(folder)
    try:
        if not stat.S_ISDIR(os.stat(folder).st_mode):
            raise UsageError(f"{os.fsdecode(folder)}: not a folder")
        fd = above_standard(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except FileNotFoundError:
        raise SourceNotFoundError(f"{os.fsdecode(folder)}: no such folder") from None
    except OSError as error:
        raise ReadError(error.errno, os.fsdecode(folder)) from error
    ways = Ways(fd)
    try:
        yield SourceFolder(folder, fd, ways, os.path.realpath(folder), leave_out)
    finally:
        ways.close()
        close(fd)
