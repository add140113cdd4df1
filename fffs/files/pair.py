"""commit_pair: two files that only make sense together, put in place one after the other."""

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

# Seconds that a writer waits for others that put files in place in the same folder, which takes them milliseconds.
PATIENCE = 10.0


@contextlib.contextmanager
def only_writer(file: AtomicFile) -> Iterator[None]:
    """Hold a lock of the folder that a file is written to: no other writer that asks for it puts files in place.

    Where the file system has no locks, or the folder cannot be read, nothing is locked. Neither is a temporary folder:
    it belongs to this process, which holds its lock already.

    Raises:
        WriteError: another process holds the lock all the time.

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
    """Put both files in place, ``last`` at the end: readers open it, and without it find nothing.

    The old files leave their names before a new one comes, ``last``'s first, and each step is on the disk before the
    next one. So a crash leaves, under these two names, both old files, both new ones, or no file ``last``: never an old
    file with a new one, which would pass for a whole. Call this in ``only_writer``, for two that do this at once could
    mix their files.

    Raises WriteError, and then both old files have their names again; the error names those that could not get them
    back. Or both new ones are in place and only their folder could not be synced; the error says so.
    """
    try:
        last.sync()
        first.sync()  # the remaining steps are renames, which hardly ever fail
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
    except BaseException as error:  # also an interrupt: one between two renames must not lose the old files
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
    """A new file, and the old one that has its name, for the length of a with-block."""

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
        """Give the old file its name again, or leave nothing of that name. Returns the path of an old file whose name
        is taken, or an empty string.
        """
        with contextlib.suppress(OSError):  # an interrupt after the rename may have hidden that it was done
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
