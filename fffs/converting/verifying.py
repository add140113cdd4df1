"""Reading results back and comparing them with their sources."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

import numpy as np

from fffs.base.failures import reading, writing
from fffs.errors import RecordError
from fffs.files.dirfd import close
from fffs.files.sync import sync_files
from fffs.tree.tree import COLUMNS, Tree


def differs(target: str, record: int) -> RecordError:
    """Make the error for a record of a result that differs from the source."""
    return RecordError(
        f"{target}: record {record} differs from the source: it was damaged during writing; convert it again",
        path=target,
        record=record,
        number=record,
    )


@contextlib.contextmanager
def _readable(here: str) -> Iterator[None]:
    """Make all files in a folder readable for this process during the block: a umask may forbid that even to the owner.
    The end of the block restores the modes. If a mode cannot be changed, reading the file raises the error.
    """
    given: list[tuple[str, os.stat_result]] = []
    try:
        _permit(here, given)
        yield
    finally:
        for path, was in reversed(given):
            _change_mode(path, was, stat.S_IMODE(was.st_mode))


def _permit(path: str, given: list[tuple[str, os.stat_result]]) -> None:
    with contextlib.suppress(OSError):
        was = os.lstat(path)
        wanted = 0o700 if stat.S_ISDIR(was.st_mode) else 0o400
        if was.st_uid == os.geteuid() and was.st_mode & wanted != wanted and not stat.S_ISLNK(was.st_mode):
            given.append((path, was))
            _change_mode(path, was, stat.S_IMODE(was.st_mode) | wanted)
        if stat.S_ISDIR(was.st_mode):
            for name in os.listdir(path):
                _permit(os.path.join(path, name), given)


def _change_mode(path: str, was: os.stat_result, mode: int) -> None:
    """Change a mode if the path still leads to the same file; chmod(path) might follow a link that replaced it."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.path.samestat(os.fstat(fd), was):
                os.chmod(f"/proc/self/fd/{fd}", mode)
        finally:
            close(fd)


@contextlib.contextmanager
def rereading(here: str) -> Iterator[None]:
    """During the block, read the files of a new folder from the disk, not the page cache, whatever their modes are.

    Raises WriteError: a file cannot be synced. ReadError: a file cannot be read.
    """
    with _readable(here):
        forget(here)
        yield


def forget(here: str) -> None:
    """Sync all files in a folder and drop them from the page cache. Raises WriteError, ReadError."""
    with writing(here):
        fd = os.open(here, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sync_files(fd)
        finally:
            close(fd)
    for path in [os.path.join(folder, name) for folder, _, names in os.walk(here) for name in names]:
        with reading(path):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                close(fd)


def compare_tree(source: Tree, result: Tree, shown: str, target: str) -> None:
    """Raise RecordError unless names, modes, times and links are equal."""
    if not all(np.array_equal(getattr(source, column), getattr(result, column)) for column in COLUMNS):
        raise RecordError(
            f"{target}: names, modes or times differ from those of {shown}; convert it again", path=target
        )
