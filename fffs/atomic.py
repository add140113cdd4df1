"""AtomicFile, AtomicFolder: what appears complete or not at all.

Each is written under a temporary name in the same folder, synced, renamed to its own, and the folder synced: whoever is
killed at any moment leaves the target as it was or complete. That folder is held open meanwhile: neither a new working
folder nor one renamed on the way to it leads a step elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
from types import TracebackType

from fffs.early import EarlyWriting
from fffs.errors import UsageError, WriteError, WriterError
from fffs.failures import writing
from fffs.folders import FOLDER, close, open_folder, remove_content
from fffs.native import lib

# Leftovers of a writer that was killed are recognised by this name, and as nobody's by their lock: the writer holds
# one.
SUFFIX = ".fffs-tmp"

# What is added to the name of a file for the one that holds its checksums: see fffs.sidecar.
CHECKSUMS = b".fffs-crc"

# The folder that something is written to. It need not be readable.
_PLACE = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_IN_PLACE = "it is complete and in place, but a power failure may undo that"


def temporary_names(name: bytes) -> re.Pattern[bytes]:
    """What the temporary files of a target called ``name`` are called. Long names must leave room for the rest."""
    return re.compile(rb"\.%b\.[0-9a-f]{12}%b" % (re.escape(name[:200]), re.escape(SUFFIX.encode())), re.DOTALL)


def _temporary_name(name: bytes) -> bytes:
    return b".%b.%b%b" % (name[:200], secrets.token_hex(6).encode(), SUFFIX.encode())


def temporary_path(path: str) -> bytes:
    """A new name beside a file, which its next writer takes for a leftover unless it is locked."""
    folder, name = os.path.split(os.fsencode(path))
    return os.path.join(folder, _temporary_name(name))


class AtomicFile:
    """A new file at ``path``; ``commit`` puts it there, ``discard`` (or an exception in the with-block) forgets it.

    ``fd`` is open for reading and writing and belongs to this object; ``early`` is to be told of what is written to it.
    Not thread-safe, but ``fd`` may be written with pwrite from several threads. After fork only the process that made
    it may commit or discard.
    """

    def __init__(self, path: str | bytes | os.PathLike[str]) -> None:
        self.path = os.fsdecode(path)
        folder, self._name = os.path.split(os.fsencode(path))
        if not self._name:
            raise UsageError(f"{self.path}: the name of a file is needed, not of a folder")
        if os.path.isdir(self.path) and not os.path.islink(self.path):
            raise WriteError(errno.EISDIR, self.path)
        with writing(self.path):
            self._folder = os.open(folder or b".", _PLACE)
            try:
                _remove_leftover_files(self._folder, self._name)
                self._mode = _mode_of_new_files()
                self.fd, self._temporary = _create_locked_file(self._folder, self._name)
            except BaseException:
                close(self._folder)
                raise
        self.early = EarlyWriting(self.fd)
        self._owner = os.getpid()
        self._open = True

    def commit(self) -> None:
        """Put the file in place, durably. Raises WriteError, and then the target is as it was.

        Or it is in place and only its folder could not be synced; the error says so.
        """
        if os.getpid() != self._owner:
            raise WriterError(f"{self.path}: it belongs to the process that made it, which this one was forked from")
        try:
            os.fchmod(self.fd, self._mode)
            os.fsync(self.fd)
            self._forget_checksums()
            os.rename(self._temporary, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except OSError as error:
            self.discard()
            raise WriteError(error.errno, self.path) from error
        try:
            with writing(self.path, _IN_PLACE):
                _sync_place(self._folder)
        finally:
            self._close()

    def sync(self) -> None:
        """Have all of it on the disk, so that ``commit`` has little left that can fail. Raises WriteError."""
        try:
            os.fsync(self.fd)
        except OSError as error:
            self.discard()
            raise WriteError(error.errno, self.path) from error

    def _forget_checksums(self) -> None:
        """Those kept beside the file that is replaced are not the new one's: every record would seem damaged."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._name + CHECKSUMS, dir_fd=self._folder)

    def discard(self) -> None:
        """Forget the file. May be called again, and after ``commit``."""
        if not self._open:
            return
        if os.getpid() == self._owner:
            with contextlib.suppress(OSError):  # what cannot be removed is the next writer's leftover
                os.unlink(self._temporary, dir_fd=self._folder)
        self._close()

    def _close(self) -> None:
        self._open = False
        close(self.fd)
        close(self._folder)

    def __enter__(self) -> AtomicFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()

    def __del__(self) -> None:
        if getattr(self, "_open", False):
            self.discard()


class AtomicFolder:
    """A new folder at ``path``, which must not exist or be an empty folder: ``commit`` puts it there, or it is removed.

    ``fd`` is the folder, which only its user may enter until then, and belongs to this object. Not thread-safe.
    """

    def __init__(self, path: bytes, shown: str) -> None:
        """shown: what the target is called in messages."""
        self.shown = shown
        parent, self._name = os.path.split(path)
        with writing(shown):
            self._parent = os.open(parent or b".", _PLACE)
            try:
                _remove_leftover_folders(self._parent, self._name)
                self.fd, self._temporary = _create_locked_folder(self._parent, self._name)
            except BaseException:
                close(self._parent)
                raise

    def commit(self, mode: int, mtime: int) -> None:
        """Put the folder in place, durably, with that mode and time. Raises WriteError, and then the target is as it
        was. Or it is in place and only its parent could not be synced; the error says so.
        """
        with writing(self.shown):
            # One call for all that is in it, instead of one for every file.
            if status := lib.fffs_syncfs(self.fd):
                raise OSError(-status, os.strerror(-status))
            os.fchmod(self.fd, mode)
            os.utime(self.fd, ns=(mtime, mtime))
            _sync_folder(self.fd)
            os.rename(self._temporary, self._name, src_dir_fd=self._parent, dst_dir_fd=self._parent)
        with writing(self.shown, _IN_PLACE):
            _sync_place(self._parent)

    def __enter__(self) -> AtomicFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _remove_folder(self._parent, self._temporary, self.fd)
        close(self.fd)
        close(self._parent)


def _create_locked_file(folder: int, name: bytes) -> tuple[int, bytes]:
    """A new file whose lock this process holds: its descriptor and name."""
    while True:
        temporary = _temporary_name(name)
        try:
            fd = os.open(temporary, _NEW_FILE, 0o600, dir_fd=folder)
        except FileExistsError:
            continue  # by chance, or because somebody wants us to write there
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            # Another writer may have taken the file for a leftover before it was locked.
            if os.fstat(fd).st_nlink == 1:
                return fd, temporary
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            close(fd)
            raise
        close(fd)


def _create_locked_folder(parent: int, name: bytes) -> tuple[int, bytes]:
    """A new folder whose lock this process holds: its descriptor and name."""
    while True:
        temporary = _temporary_name(name)
        try:
            os.mkdir(temporary, 0o700, dir_fd=parent)
        except FileExistsError:
            continue
        try:
            fd = open_folder(temporary, parent, force=True)  # a umask may forbid it even to us
        except FileNotFoundError:
            continue  # another took it for a leftover before it was locked
        except BaseException:
            with contextlib.suppress(OSError):
                os.rmdir(temporary, dir_fd=parent)
            raise
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            os.fchmod(fd, 0o700)
            if _is_named(parent, temporary, fd):
                return fd, temporary
        except BaseException:
            _remove_folder(parent, temporary, fd)
            close(fd)
            raise
        close(fd)


def _is_named(folder: int, name: bytes, fd: int) -> bool:
    """Whether the name leads to what is open as fd."""
    try:
        return os.path.samestat(os.stat(name, dir_fd=folder, follow_symlinks=False), os.fstat(fd))
    except OSError:
        return False


def _remove_folder(parent: int, name: bytes, fd: int) -> None:
    """Remove a folder, open as fd and locked by us, as far as possible; not what has been given another name."""
    if _is_named(parent, name, fd):
        remove_content(fd)
        with contextlib.suppress(OSError):
            os.rmdir(name, dir_fd=parent)


def _mode_of_new_files() -> int:
    """What open(2) would give a new file. The umask can only be read by setting it, or here without that race."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith("Umask:"):
                return 0o666 & ~int(line.split()[1], 8)
    return 0o644


def _sync_place(place: int) -> None:
    """Make a rename in a folder durable."""
    try:
        fd = os.open(b".", FOLDER, dir_fd=place)
    except PermissionError:
        return  # we may write to it and not list it; the rename is done
    try:
        _sync_folder(fd)
    finally:
        close(fd)


def _sync_folder(fd: int) -> None:
    """File systems that cannot sync a folder say EINVAL: nothing more can be done there."""
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


# ---------------------------------------------------------------- leftovers


def _find_leftovers(place: int, name: bytes) -> list[bytes]:
    """What bears the name of a temporary file or folder of the target."""
    ours = temporary_names(name)
    try:
        fd = os.open(b".", FOLDER, dir_fd=place)
    except OSError:
        return []  # a folder that cannot be listed can be written to all the same
    try:
        return [entry for entry in map(os.fsencode, os.listdir(fd)) if ours.fullmatch(entry)]
    except OSError:
        return []
    finally:
        close(fd)


def _remove_leftover_files(folder: int, name: bytes) -> None:
    """Remove what killed writers of the same target left: their locks are free."""
    for entry in _find_leftovers(folder, name):
        with contextlib.suppress(OSError):  # somebody is writing it, or it is gone, or it is nothing of ours
            # O_NONBLOCK: a FIFO of that name must not stop us.
            fd = os.open(entry, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(entry, dir_fd=folder)
            finally:
                close(fd)


def _remove_leftover_folders(parent: int, name: bytes) -> None:
    """Remove what killed processes left that unpacked into the same target: their locks are free."""
    for entry in _find_leftovers(parent, name):
        with contextlib.suppress(OSError):
            mode = stat.S_IMODE(os.stat(entry, dir_fd=parent, follow_symlinks=False).st_mode)
            try:
                fd, forced = open_folder(entry, parent), False
            except PermissionError:
                fd, forced = open_folder(entry, parent, force=True), True
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove_folder(parent, entry, fd)
            except BlockingIOError:
                if forced:
                    os.fchmod(fd, mode)  # its owner has completed it and is about to rename it
            finally:
                close(fd)
