"""Local files: opened for reading."""

from __future__ import annotations

import os
import stat

from fffs.base.descriptors import above_standard
from fffs.base.paths import PathLike
from fffs.errors import ReadError, SourceNotFoundError, UsageError
from fffs.files.dirfd import close


def open_source(path: PathLike) -> tuple[int, str]:
    """``open_with_status`` without the status."""
    return open_with_status(path)[:2]


def open_with_status(path: PathLike) -> tuple[int, str, os.stat_result]:
    """Open a regular file for reading: its descriptor, the caller's to close, its path as a str, and its status now.

    Raises:
        SourceNotFoundError: it is not there.
        UsageError: it is no regular file.
        ReadError: it cannot be opened.

    """
    name = os.fsdecode(path)
    try:
        # O_NONBLOCK: opening a FIFO must not wait for a writer. It means nothing for a regular file.
        fd = above_standard(os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
    except FileNotFoundError:
        raise SourceNotFoundError(f"{name}: no such file") from None
    except OSError as error:
        raise ReadError(error.errno, name) from error
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        close(fd)
        raise UsageError(f"{name}: not a regular file")
    return fd, name, status
