"""commit_pair: puts two files in place that are only valid together."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator

from fffs.base.failures import writing
from fffs.errors import WriteError
from fffs.files.aside import Aside
from fffs.files.atomic import IN_PLACE, AtomicFile, sync_place
from fffs.files.dirfd import FOLDER, close
from fffs.files.temporary import SUFFIX, lock

# Seconds that a writer waits for others in the same folder. They hold the lock for milliseconds.
PATIENCE = 10.0


@contextlib.contextmanager
def only_writer(file: AtomicFile) -> Iterator[None]:
    """Hold the lock of the folder of a new file, which every writer of a pair takes to put files in place.

    Nothing is locked if the file system has no locks or the folder cannot be read, nor for a temporary folder, whose
    lock this process holds already.

    Raises:
        WriteError: another process holds the lock for PATIENCE seconds.

    """
    folder, _ = file.locate()
    try:
        if os.path.dirname(os.path.abspath(file.path)).endswith(SUFFIX):
            yield
            return
        with contextlib.suppress(PermissionError):
            folder, unreadable = os.open(b".", FOLDER, dir_fd=folder), folder
            close(unreadable)
            _lock(folder, file.path)
        yield
    finally:
        close(folder)


def _lock(folder: int, path: str) -> None:
    end = time.monotonic() + PATIENCE
    while True:
        try:
            lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > end:
                raise WriteError(errno.EAGAIN, path, "another process holds a lock of its folder") from None
            time.sleep(0.01)


def commit_pair(first: AtomicFile, last: AtomicFile) -> None:
    """Put both files in place, ``last`` at the end: readers open that one, and find nothing without it.

    Both old files are moved aside before a new one takes a name, ``last``'s first, and each step is on the disk before
    the next. So a crash leaves, under these two names, both old files, both new ones, or no file ``last``; never an old
    file beside a new one, which would look like a valid pair. Call this in ``only_writer``: two concurrent writers
    could mix their files.

    Raises:
        WriteError: both old files have their names again, or the message names those that have not; or both new files
            are in place but their folder could not be synced, as the message then says.

    """
    try:
        last.sync()
        first.sync()  # the remaining steps are renames, which rarely fail
        with _Exchange(first) as one, _Exchange(last) as other:
            _replace(one, other)
    finally:
        first.discard()
        last.discard()


def _replace(first: _Exchange, last: _Exchange) -> None:
    try:
        if last.new.replaces and last.move_aside() | first.move_aside():
            last.sync()
        first.new.commit()
        last.new.commit()
    except BaseException as error:  # also an interrupt: between two renames, it must not lose the old files
        if last.new.in_place:
            raise
        kept = [path for path in (first.undo(), last.undo()) if path]
        if kept:
            what = f"the old content is now in {' and '.join(kept)}"
            raise WriteError(getattr(error, "errno", None), last.new.path, what) from error
        if isinstance(error, WriteError) and error.detail == IN_PLACE:  # of the first alone
            raise WriteError(error.errno, str(error.filename)) from error
        raise


class _Exchange:
    """A new file and the old one of the same name, for the length of a with-block."""

    def __init__(self, new: AtomicFile) -> None:
        self.new = new
        self._identity = os.fstat(new.fd)
        self._folder, self._name = new.locate()
        self._old = Aside(self._folder, self._name, self._name)

    def move_aside(self) -> bool:
        """Move the old file aside. Returns False if there is none. Raises WriteError."""
        with writing(self.new.path):
            return self._old.move()

    def sync(self) -> None:
        """Make the renames in the folder durable. Raises WriteError."""
        with writing(self.new.path):
            sync_place(self._folder)

    def undo(self) -> str:
        """Give the old file its name again, or remove the new one. Returns an empty string, or the path of an old file
        whose name is taken.
        """
        with contextlib.suppress(OSError):  # after an interrupt, the rename may be done although ``in_place`` is False
            if os.path.samestat(os.stat(self._name, dir_fd=self._folder, follow_symlinks=False), self._identity):
                os.unlink(self._name, dir_fd=self._folder)
        kept = self._old.bring_back()
        return os.path.join(os.path.dirname(self.new.path), kept) if kept else ""

    def __enter__(self) -> _Exchange:
        return self

    def __exit__(self, *_: object) -> None:
        if self.new.in_place:
            self._old.remove()
        self._old.close()
        close(self._folder)
