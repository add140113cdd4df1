"""Source files: opened for reading, and kept together with their index."""

from __future__ import annotations

import functools
import os
import stat
from dataclasses import dataclass
from typing import Any

from fffs.base.descriptors import above_standard
from fffs.base.paths import PathLike
from fffs.errors import ReadError, SourceNotFoundError, UsageError
from fffs.files.dirfd import close
from fffs.files.stamps import make_stamp
from fffs.records.index import RecordIndex


@dataclass(frozen=True)
class SourceFile:
    """An open file, its index, and its status before the index was read. Whoever takes it over closes ``fd``."""

    fd: int
    index: RecordIndex
    status: os.stat_result

    @functools.cached_property
    def stamp(self) -> Any:
        """What it must keep while it is read, if it has no checksums."""
        return make_stamp(self.status, self.index.least)


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
