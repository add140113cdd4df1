"""AtomicFile: a file that appears complete or not at all.

The file is written under a temporary name in the same folder, synced and renamed; then the folder is synced. A process
that is killed at any moment leaves the target as it was, or complete. The folder stays open meanwhile, so a change of
the working folder or a rename of a parent does not redirect a step.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterable

from fffs.base.descriptors import above_standard, duplicate
from fffs.base.failures import reading, writing
from fffs.base.paths import PathLike, without_zero
from fffs.base.withblock import Discarding, refuse_child
from fffs.errors import UsageError, WriteError
from fffs.files.aside import Aside
from fffs.files.atomic_output import RawWriter
from fffs.files.dirfd import FOLDER, close
from fffs.files.leftovers import remove_leftover_files
from fffs.files.local import LocalFile
from fffs.files.rights import new_mode, rights_at, rights_of, set_mode
from fffs.files.sidecar_names import CHECKSUMS, DIGEST, SIDECARS
from fffs.files.sync import sync_open_folder
from fffs.files.targets import refuse_file
from fffs.files.temporary import (
    ABSENT,
    close_locked,
    create_locked_file,
    forget_lock,
    is_named,
    is_there,
    lock,
    rename_new,
    share_lock,
)
from fffs.files.write_back import WriteBack

# Flags for the folder of a new file, which need not be readable.
PLACE = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
# The detail of an error if only the folder could not be synced.
IN_PLACE = "it is complete and in place, but a power failure may undo that"


class _Reread(LocalFile):
    """A file that shares the lock of an AtomicFile, which a child of fork must not keep."""

    def __init__(self, descriptor: int, name: str) -> None:
        share_lock(descriptor)
        super().__init__(descriptor, name)

    def close(self) -> None:
        """Close the file."""
        forget_lock(self.descriptor)
        super().close()


class AtomicFile(Discarding):
    """A new file at ``path``. ``commit`` puts it in place; ``discard``, or the end of the with-block, removes it.

    ``name`` is its name in ``folder``. ``fd`` is open for reading and writing; report writes to ``wrote``. Both
    descriptors belong to this object. The new file gets the permissions of the file that it replaces, otherwise those
    of the umask. Not thread-safe, but several threads may pwrite to ``fd``. After fork, only the process that made the
    object may commit or discard.
    """

    def __init__(self, path: PathLike, beside: int | None = None, place: int | None = None) -> None:
        """beside: an open file that this one belongs to; the new file gets its permissions.

        place: its folder, if that is open already; the path may lead to another one by now.
        """
        self.path = without_zero(path)
        self.name = os.path.basename(os.fsencode(path))
        if not self.name:
            raise UsageError(f"{self.path}: is the name of a folder; name a file")
        refuse_file(self.path)
        with writing(self.path):
            self.folder = open_place(path) if place is None else duplicate(place)
            try:
                remove_leftover_files(self.folder, self.name)
                self._mode = new_mode(0o666, self.folder)
                self._replaced = rights_at(self.folder, self.name)
                self._beside = None if beside is None else rights_of(beside, 0o666)
                self._owner = os.getpid()
                self.fd, self._temporary = create_locked_file(self.folder, self.name)
                self._open = True  # at once: an interrupt may come at any call
            except BaseException:
                close(self.folder)
                raise
        self._write_back = WriteBack(self.fd)
        self.in_place = False
        self.replaces = True
        """Whether ``commit`` replaces a file of that name; otherwise it fails if there is one."""

    def expect_size(self, total: int) -> None:
        """Do nothing: a file can have any size."""

    def raw(self) -> RawWriter:
        """Return a raw file object that writes to ``fd``."""
        return RawWriter(self)

    def wrote(self, offset: int, size: int) -> None:
        """Count what was written, and start its write-back. Thread-safe."""
        self._write_back.wrote(size)

    def cancel(self) -> None:
        """Do nothing: no call waits for long."""

    def reread(self) -> LocalFile:
        """Open what was written so far for reading, from the disk instead of the page cache. The caller closes it.

        Raises:
            WriteError: the file cannot be synced.
            ReadError: it cannot be opened again.

        """
        self.sync()
        with reading(self.path):
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)
            return _Reread(duplicate(self.fd), self.path)

    def commit(self) -> None:
        """Put the file in place, durably.

        Raises:
            WriteError: the target is as it was; or the file is in place but its folder could not be synced, as the
                message then says.

        """
        refuse_child(self._owner, self.path)
        sidecars = [Aside(self.folder, self.name + ending.encode(), self.name) for ending in SIDECARS]
        try:
            self._put_in_place(sidecars)
        except OSError as error:
            _each(sidecars, Aside.bring_back)
            self.discard()
            taken = isinstance(error, FileExistsError) and not self.replaces
            raise WriteError(error.errno, self.path, "another process made it meanwhile" if taken else "") from error
        except BaseException:  # an interrupt: the caller may think that there is nothing to discard any more
            _each(sidecars, Aside.remove if is_named(self.folder, self.name, self.fd) else Aside.bring_back)
            self.discard()
            raise
        finally:
            _each(sidecars, Aside.remove)
            _each(sidecars, Aside.close)
        try:
            with writing(self.path, IN_PLACE):
                sync_place(self.folder)
        finally:
            self._close()

    def _put_in_place(self, sidecars: Iterable[Aside]) -> None:
        if not self.replaces and is_there(self.folder, self.name):  # before its sidecars lose their names
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        self._give_rights()
        os.fsync(self.fd)
        _each(sidecars, Aside.move)  # before the rename: after a crash, old checksums must not be beside the new file
        self._take_name()
        self.in_place = True
        with contextlib.suppress(OSError):  # new ones of the old file, written meanwhile
            forget_sidecar(self.name, CHECKSUMS, self.folder)
        with contextlib.suppress(OSError):
            if is_named(self.folder, self.name, self.fd):  # or it may be that of a pack which has replaced this file
                forget_sidecar(self.name, DIGEST, self.folder)
        # Keeps the file from being taken for a leftover; an exclusive lock would say that it is appended to.
        with contextlib.suppress(OSError):
            lock(self.fd, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def _take_name(self) -> None:
        folder = self.folder
        if self.replaces:
            os.rename(self._temporary, self.name, src_dir_fd=folder, dst_dir_fd=folder)
        else:
            rename_new(folder, self._temporary, self.name)

    def _give_rights(self) -> None:
        """Give the new file the current permissions of the old one, or its last known ones if it was removed."""
        if rights := self._beside or rights_at(self.folder, self.name) or self._replaced:
            rights.give(self.fd, self._mode)
        else:
            set_mode(self.fd, self._mode)

    def let_owner_read(self) -> None:
        """Give the owner of a new file the permission to read and write it, whatever the umask is."""
        self._mode |= 0o600

    def belongs_to(self, other: AtomicFile) -> None:
        """Take the permissions from the file that ``other`` replaces, if there is one."""
        self._beside = other._replaced

    def sync(self) -> None:
        """Write all data to the disk, so that little can fail in ``commit``. Discards and raises WriteError."""
        try:
            os.fsync(self.fd)
        except OSError as error:
            self.discard()
            raise WriteError(error.errno, self.path) from error

    def end_writing(self) -> None:
        """Sync, and open ``fd`` anew for reading only: fs-verity wants that nobody can write to the file.

        Raises WriteError.
        """
        self.sync()
        with writing(self.path):
            lock(self.fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # both descriptors need one, or the file is a leftover
            fd = os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                lock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                os.dup2(fd, self.fd, inheritable=False)
            finally:
                forget_lock(fd)
                close(fd)

    def discard(self) -> None:
        """Remove the new file. May be called again, and after ``commit``."""
        if not self._open:
            return
        if os.getpid() == self._owner:
            with contextlib.suppress(OSError):  # the next writer removes leftovers
                os.unlink(self._temporary, dir_fd=self.folder)
        self._close()

    def _close(self) -> None:
        self._open = False
        close_locked(self.fd, self._owner)
        close(self.folder)


def _each(sidecars: Iterable[Aside], act: Callable[[Aside], object]) -> None:
    for sidecar in sidecars:
        act(sidecar)


def forget_checksums(name: bytes, folder: int | None = None) -> None:
    """Delete FILE.fffs-crc before FILE changes; stale checksums would make every record look corrupt.

    name: of FILE, in the open folder, or a path if there is none. Raises OSError.
    """
    forget_sidecar(name, CHECKSUMS, folder)


def forget_sidecar(name: bytes, ending: str, folder: int | None) -> None:
    """Delete one of the sidecars of a file, if it is there. As ``forget_checksums``."""
    try:
        os.unlink(name + ending.encode(), dir_fd=folder)
    except OSError as error:
        if error.errno not in ABSENT:
            raise


def open_place(path: PathLike) -> int:
    """Open the folder that has the last name of a path. Raises OSError."""
    return above_standard(os.open(os.path.dirname(os.fsencode(path)) or b".", PLACE))


def sync_place(place: int) -> None:
    """Make a rename in a folder durable."""
    try:
        fd = os.open(b".", FOLDER, dir_fd=place)
    except PermissionError:
        return  # the folder is writable but not readable; the rename is done
    try:
        sync_open_folder(fd)
    finally:
        close(fd)
