"""Kept: files that are about to be replaced, until it is certain that what replaces them is good."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable
from types import TracebackType

from fffs.errors import WriteError
from fffs.files.atomic import IN_PLACE
from fffs.files.dirfd import close
from fffs.files.temporary import lock, second_name
from fffs.packing.scan import identity


class Kept:
    """Gives files second names for the length of a with-block; an exception in it brings them back under the first.

    The second names are those of temporary files, and locked: what a killed process leaves of them is removed by the
    next writer of the same file. Where there are no hard links, nothing is kept. For one thread.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        """paths: files that exist. Folders are left alone: they are not replaced."""
        self._paths = [path for path in paths if not os.path.isdir(path) or os.path.islink(path)]
        self._kept: list[tuple[str, bytes, int]] = []  # first name, second, descriptor with the lock or -1

    def __enter__(self) -> Kept:
        try:
            for path in self._paths:
                self._keep(path)
        except BaseException:  # an interrupt
            self._end(restore=False)
            raise
        return self

    def _keep(self, path: str) -> None:
        with contextlib.suppress(OSError):  # among others EPERM, ENOTSUP: a file system without links
            second = second_name(path)
            self._kept.append((path, second, -1))  # before it is there, so that an interrupt leaves nothing
            os.link(path, second, follow_symlinks=False)
            self._kept[-1] = (path, second, _lock(second))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        restored = self._end(restore=kind is not None)
        if isinstance(error, WriteError) and error.detail == IN_PLACE and str(error.filename) in restored:
            raise WriteError(error.errno, str(error.filename)) from error  # what it said is no longer true

    def _end(self, *, restore: bool) -> set[str]:
        """Remove the second names; before that, bring back what has been replaced, if it is to be. Returns that."""
        restored = set()
        for path, second, fd in self._kept:
            with contextlib.suppress(OSError):
                if restore and not _is_same(path, second):
                    os.rename(second, path)
                    restored.add(path)
                os.unlink(second)  # also after a rename, which does nothing to two names of one file
            if fd >= 0:
                close(fd)
        return restored


def _lock(path: bytes) -> int:
    """A descriptor with a lock; -1 where there can be none: of a symbolic link, which nobody takes for a leftover."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            lock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # who has one keeps cleaners away as well
        except OSError:
            close(fd)
            raise
        return fd
    return -1


def _is_same(path: str, second: bytes) -> bool:
    """Not by the inode alone: some file systems give the same number to all."""
    try:
        return identity(os.lstat(path)) == identity(os.lstat(second))
    except FileNotFoundError:
        return False
