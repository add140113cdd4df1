"""Reading a result back and comparing it with its source."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

import numpy as np

from fffs.base.failures import reading, writing
from fffs.errors import RecordError
from fffs.files.atomic_folder import sync_files
from fffs.files.dirfd import close
from fffs.tree.tree import COLUMNS, Tree


def differs(target: str, record: int) -> RecordError:
    """The error for a record of a result that is not what was written."""
    return RecordError(
        f"{target}: record {record} is not the source's: it was damaged when it was written; convert once more",
        path=target,
        record=record,
        number=record,
    )


@contextlib.contextmanager
def _readable(here: str) -> Iterator[None]:
    """Let the process itself read all that is in a folder, in the block: a umask may forbid it even to the owner. The
    modes are as before at its end. What cannot be permitted is an error of the one that reads it.
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
    """Of what is still what it was: chmod of a name might follow a link that somebody has put there."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.path.samestat(os.fstat(fd), was):
                os.chmod(f"/proc/self/fd/{fd}", mode)
        finally:
            close(fd)


@contextlib.contextmanager
def rereading(here: str) -> Iterator[None]:
    """Have all files in a new folder read from the disk in the block, not from memory, whatever their modes are.

    Raises WriteError: they cannot be synced. ReadError.
    """
    with _readable(here):
        forget(here)
        yield


def forget(here: str) -> None:
    """Have all files in a folder read from the disk, not from memory. Raises WriteError, ReadError."""
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
    """Raise RecordError unless names, modes, times and links are the same."""
    if not all(np.array_equal(getattr(source, column), getattr(result, column)) for column in COLUMNS):
        raise RecordError(
            f"{target}: its names, modes or times are not those of {shown}; convert once more", path=target
        )
