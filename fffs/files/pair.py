"""commit_pair: puts two files in place that are only valid together."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator

from fffs.base.descriptors import above_standard, duplicate
from fffs.base.failures import writing
from fffs.errors import WriteError
from fffs.files.aside import Aside
from fffs.files.atomic import IN_PLACE, AtomicFile, open_place, sync_place
from fffs.files.dirfd import close
from fffs.files.file_systems import has_inode_numbers
from fffs.files.temporary import close_locked, is_named, lock, lock_name

_LOCK_FILE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

# Seconds that a writer waits for another one that puts the same files in place, which takes a few renames and syncs.
PATIENCE = 60.0
PAUSE = 0.01


@contextlib.contextmanager
def only_writer(path: str, place: int | None = None, patience: float | None = None) -> Iterator[None]:
    """Hold the lock of a name: every writer of a pair takes that of its last file to put files in place.

    place: its folder, if that is open already; the path may lead to another one when the working folder has changed.
    patience: seconds to wait for another process; None: PATIENCE.

    The lock is that of a file of its own, because a lock of the folder would make all writers of a large data set wait
    for each other. Its owner removes the file, and before that marks it by a size, for others that have opened it and
    wait for its lock. A killed process leaves the file, empty, to the next owner. Nothing is locked if the file system
    has no locks, or another user's file has that name.

    Raises:
        WriteError: another process holds the lock for so long.

    """
    with writing(path):
        folder = open_place(path) if place is None else duplicate(place)
    lock_file = _LockFile(folder, lock_name(os.path.basename(os.fsencode(path))))
    try:
        end = time.monotonic() + (PATIENCE if patience is None else patience)
        while not lock_file.take():
            if time.monotonic() > end:
                raise WriteError(errno.EAGAIN, path, "another process is putting a file in place there")
            time.sleep(PAUSE)
        yield
    finally:
        lock_file.release()
        close(folder)


class _LockFile:
    """A file that exists while its lock is held. ``release`` may be called after an interrupt at any point."""

    def __init__(self, folder: int, name: bytes) -> None:
        self._folder, self._name = folder, name
        self._owner = os.getpid()
        self._fd = -1
        self._ours = False

    def take(self) -> bool:
        """Create and lock the file. Returns False if another process has it; True also if it cannot be locked."""
        try:
            self._open()
        except BlockingIOError:
            self._close()
            return False
        except OSError:  # planted by another user, or no room for it
            self._close()
            return True
        except BaseException:  # an interrupt, which may be raised after the file was created
            with contextlib.suppress(OSError):
                if not self._ours:
                    self._close()
                    self._open()
            self.release()
            raise
        if self._ours:
            return True
        # Its last owner has removed it; if that failed, it is removed here.
        if is_named(self._folder, self._name, self._fd):
            self._remove()
        self._close()
        return False

    def _open(self) -> None:
        """Create the file, or open it, and lock it. Raises OSError."""
        self._fd = above_standard(os.open(self._name, _LOCK_FILE, 0o666, dir_fd=self._folder))
        lock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._ours = os.fstat(self._fd).st_size == 0

    def release(self) -> None:
        """Remove the file and release its lock. May be called at any time."""
        try:
            if self._ours and os.getpid() == self._owner:
                self._give_up()
        finally:
            self._ours = False
            self._close()

    def _give_up(self) -> None:
        try:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, 1)
                self._remove()
        except BaseException:  # an interrupt between the two; the name may be that of the next owner's file by now
            if is_named(self._folder, self._name, self._fd):
                self._remove()
            raise

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._name, dir_fd=self._folder)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            close_locked(fd, self._owner)


def commit_pair(first: AtomicFile, last: AtomicFile) -> None:
    """Put both files in place, ``last`` at the end: readers open that one, and find nothing without it.

    Both old files are moved aside before a new one takes a name, ``last``'s first, and each step is on the disk before
    the next. So a crash leaves, under these two names, both old files, both new ones, or no file ``last``; never an old
    file beside a new one, which would look like a valid pair. Call this in ``only_writer``: two concurrent writers
    could mix their files. Both files are in one folder, and synced already: the remaining steps are renames, which
    rarely fail.

    Raises:
        WriteError: both old files have their names again, or the message names those that have not; or both new files
            are in place but their folder could not be synced, as the message then says.

    """
    try:
        folder = duplicate(last.folder)
        try:
            with _Exchange(first, folder) as one, _Exchange(last, folder) as other:
                _replace(one, other)
        finally:
            close(folder)
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
    """A new file and the old one of the same name, for the length of a with-block. folder: the caller's."""

    def __init__(self, new: AtomicFile, folder: int) -> None:
        self.new = new
        self._identity = os.fstat(new.fd)
        self._folder, self._name = folder, new.name
        self._old = Aside(folder, new.name)

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
            now = os.stat(self._name, dir_fd=self._folder, follow_symlinks=False)
            if os.path.samestat(now, self._identity) or (self.new.in_place and not has_inode_numbers(self._folder)):
                os.unlink(self._name, dir_fd=self._folder)
        kept = self._old.bring_back()
        return os.path.join(os.path.dirname(self.new.path), kept) if kept else ""

    def __enter__(self) -> _Exchange:
        return self

    def __exit__(self, *_: object) -> None:
        if self.new.in_place:
            self._old.remove()
        self._old.close()
