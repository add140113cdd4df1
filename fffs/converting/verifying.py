"""Reading a result back and comparing it with its source."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence

import numpy as np

from fffs.base.failures import reading
from fffs.base.jobs import Jobs
from fffs.converting.records import Records
from fffs.errors import RecordError
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
def readable(paths: Sequence[str]) -> Iterator[None]:
    """Let us ourselves read results, and all that is in them, in the block: a umask may forbid it even to us. They get
    their own modes back at its end. What we may not permit ourselves is missed by who reads.
    """
    given: list[tuple[str, os.stat_result]] = []
    try:
        for path in paths:
            _permit(path, given)
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


def forget(target: str) -> None:
    """Have a file, or all in a folder, read from the disk when they are compared, not from memory. They are synced.

    Raises ReadError.
    """
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(target) for name in names] or [target]
    for path in paths:
        with reading(path):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                close(fd)


def compare_records(source: Records, result: Records, target: str, work: Jobs) -> None:
    """Raise RecordError for the first record that is not the same in both."""
    work.count(0)
    if not np.array_equal(source.lengths, result.lengths):
        same = min(len(source.lengths), len(result.lengths))
        unlike = np.flatnonzero(source.lengths[:same] != result.lengths[:same])
        raise differs(target, int(unlike[0]) if len(unlike) else same)
    first = 0
    for ours, theirs in zip(source.batches(()), result.batches(()), strict=True):
        if not np.array_equal(ours.data, theirs.data):
            at = int(np.argmax(ours.data != theirs.data))
            raise differs(target, first + int(np.searchsorted(ours.offsets, at, side="right")) - 1)
        first += len(ours.offsets) - 1
        work.count(len(ours.data))
        del ours, theirs  # or the next ones would be the third in memory


def compare_tree(source: Tree, result: Tree, shown: str, target: str) -> None:
    """Raise RecordError unless names, modes, times and links are the same."""
    if not all(np.array_equal(getattr(source, column), getattr(result, column)) for column in COLUMNS):
        raise RecordError(
            f"{target}: its names, modes or times are not those of {shown}; convert once more", path=target
        )
