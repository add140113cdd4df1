"""Aside: moves an old file aside while a new one takes its name, and back if that fails."""

from __future__ import annotations

import contextlib
import fcntl
import os

from fffs.base.paths import random_name
from fffs.files.temporary import close_locked, is_there, lock, rename_new, temporary_name


class Aside:
    """A file in an open folder; ``move`` gives it another name. Not thread-safe.

    With a ``target``, the other name is temporary: if the process is killed, the next writer of the target removes the
    file. A shared lock keeps other writers from doing so before ``close``. Without one, a killed process leaves the
    file as ``NAME.XXXXXX.old``, which nobody removes.
    """

    def __init__(self, folder: int, name: bytes, target: bytes | None = None) -> None:
        """folder: the caller's."""
        self._folder, self._name, self._target = folder, name, target
        self._temporary = b""
        self._fd = -1
        self._owner = os.getpid()
        self._moved = False

    def move(self) -> bool:
        """Give the file its other name. Returns False if there is no file. Raises OSError."""
        if not is_there(self._folder, self._name):
            return False
        if self._target is None:
            self._temporary = self._old_name()
        else:
            self._temporary = temporary_name(self._target)
            with contextlib.suppress(OSError):  # a symbolic link cannot be locked, and is never removed as a leftover
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                self._fd = os.open(self._name, flags, dir_fd=self._folder)
                lock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        self._moved = True  # before the rename: an interrupt may be raised when it is done
        try:
            os.rename(self._name, self._temporary, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except FileNotFoundError:
            self._moved = False
        except OSError:
            self._moved = False
            raise
        return self._moved

    def bring_back(self) -> str:
        """Undo ``move``. Returns an empty string, or the file's new name if its own cannot be restored; no writer
        removes a file of that new name.
        """
        if not self._moved:
            return ""
        self._moved = False
        names = [self._name] if self._target is None else [self._name, self._old_name()]
        for name in names:
            try:
                rename_new(self._folder, self._temporary, name)
            except FileNotFoundError:  # interrupted before it was moved
                return ""
            except OSError:  # such as: another program has made a file of that name meanwhile
                continue
            return "" if name == self._name else os.fsdecode(name)
        return os.fsdecode(self._temporary)

    def _old_name(self) -> bytes:
        return self._name[:240] + b".%b.old" % random_name(3).encode()

    def remove(self) -> None:
        """Remove the file if it was moved, when the new one is in place. If that fails, it keeps its other name."""
        if self._moved:
            try:
                os.unlink(self._temporary, dir_fd=self._folder)
            except IsADirectoryError:  # which is not removed, and not ours
                self.bring_back()
            except OSError:  # or it was interrupted before it was moved
                pass
            self._moved = False

    def close(self) -> None:
        """Release the lock. May be called again."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            close_locked(fd, self._owner)
