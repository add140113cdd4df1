"""Reading a result back and comparing it with its source."""

from __future__ import annotations

import os

import numpy as np

from fffs.converting.records import Records
from fffs.errors import RecordError
from fffs.failures import reading
from fffs.folders import close
from fffs.jobs import Jobs
from fffs.tree import COLUMNS, Tree


def differs(target: str, record: int) -> RecordError:
    """The error for a record of a result that is not what was written."""
    return RecordError(
        f"{target}: record {record} is not the source's: it was damaged when it was written; convert once more",
        path=target,
        record=record,
        number=record,
    )


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
