"""Source files: opened for reading, and kept together with their index."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

from fffs.descriptors import above_standard
from fffs.errors import ReadError, SourceNotFoundError, UsageError
from fffs.folders import close
from fffs.index import RecordIndex
from fffs.paths import PathLike


@dataclass(frozen=True)
class SourceFile:
    """An open file and its index. Whoever takes it over closes ``fd``."""

    fd: int
    index: RecordIndex


def open_source(path: PathLike) -> tuple[int, str]:
    """Open a regular file for reading: its descriptor, the caller's to close, and its path as a str.

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
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        close(fd)
        raise UsageError(f"{name}: not a regular file")
    return fd, name
