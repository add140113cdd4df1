"""AtomicFile: a file that appears complete or not at all.

It is written under a temporary name in the same folder, synced, renamed over the target, and the folder synced: whoever
is killed at any moment leaves the target as it was or complete.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
from types import TracebackType

from fffs.errors import UsageError, WriteError

# Leftovers of a writer that was killed are recognised by this name, and as nobody's by their lock: the writer holds
# one.
SUFFIX = ".fffs-tmp"


def temporary_names(name: bytes) -> re.Pattern[bytes]:
    """What the temporary files of a target called ``name`` are called. Long names must leave room for the rest."""
    return re.compile(rb"\.%b\.[0-9a-f]{12}%b" % (re.escape(name[:200]), re.escape(SUFFIX.encode())), re.DOTALL)


class AtomicFile:
    """A new file at ``path``; ``commit`` puts it there, ``discard`` (or an exception in the with-block) forgets it.

    ``fd`` is open for reading and writing and belongs to this object. Not thread-safe, but ``fd`` may be written with
    pwrite from several threads. After fork only the process that made it may commit or discard.
    """

    def __init__(self, path: str | bytes | os.PathLike[str]) -> None:
        self.path = os.fsdecode(path)
        folder, name = os.path.split(self.path)
        if not name:
            raise UsageError(f"{self.path}: the name of a file is needed, not of a folder")
        if os.path.isdir(self.path) and not os.path.islink(self.path):
            raise WriteError(errno.EISDIR, self.path)
        self._folder = folder or "."
        _remove_leftovers(self._folder, name)
        # Long names must leave room for the rest; os.fsencode counts what the file system counts.
        stem = os.fsdecode(os.fsencode(name)[:200])
        try:
            self._mode = _mode_of_new_files()
            self.fd, self._temporary = _create_locked(os.path.join(self._folder, f".{stem}."))
        except OSError as error:
            raise WriteError(error.errno or errno.EIO, self.path) from error
        self._owner = os.getpid()
        self._open = True

    def commit(self) -> None:
        """Put the file in place, durably. Raises WriteError, and then the target is as it was."""
        try:
            os.fchmod(self.fd, self._mode)
            os.fsync(self.fd)
            os.rename(self._temporary, self.path)
            sync_folder(self._folder)
        except OSError as error:
            self.discard()
            raise WriteError(error.errno or errno.EIO, self.path) from error
        self._close()

    def discard(self) -> None:
        """Forget the file. May be called again, and after ``commit``."""
        if not self._open:
            return
        if os.getpid() == self._owner:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._temporary)
        self._close()

    def _close(self) -> None:
        self._open = False
        os.close(self.fd)

    def __enter__(self) -> AtomicFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()

    def __del__(self) -> None:
        if getattr(self, "_open", False):
            self.discard()


def _create_locked(prefix: str) -> tuple[int, str]:
    """A new file whose lock this process holds: its descriptor and path."""
    while True:
        path = f"{prefix}{secrets.token_hex(6)}{SUFFIX}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            # Another writer may have taken the file for a leftover before it was locked.
            if os.fstat(fd).st_nlink == 1:
                return fd, path
        except OSError:
            os.unlink(path)
            os.close(fd)
            raise
        os.close(fd)


def _mode_of_new_files() -> int:
    """What open(2) would give a new file. The umask can only be read by setting it, or here without that race."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith("Umask:"):
                return 0o666 & ~int(line.split()[1], 8)
    return 0o644


def sync_folder(folder: str) -> None:
    """Make a rename durable. File systems that cannot sync a folder say EINVAL: nothing more can be done there."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return  # we may write to it and not list it; the rename is done
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)


def _remove_leftovers(folder: str, name: str) -> None:
    """Remove what killed writers of the same target left: their locks are free."""
    ours = temporary_names(os.fsencode(name))
    try:
        found = [entry for entry in os.listdir(folder) if ours.fullmatch(os.fsencode(entry))]
    except OSError:
        return  # a folder that cannot be listed can be written to all the same
    for entry in found:
        path = os.path.join(folder, entry)
        try:
            # O_NONBLOCK: a FIFO of that name must not stop us.
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
        except OSError:
            pass  # somebody is writing it, or it is gone
        finally:
            os.close(fd)
