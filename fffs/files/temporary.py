"""What is being written, under temporary names that its lock makes ours; and what writers that were killed left.

Where a file system has no locks, writers do without: their names are random. Leftovers then stay for whoever finds
them, because nothing would tell them from what a living writer has; not even their age, of a writer that waits.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
import time

from fffs.base.descriptors import above_standard
from fffs.files.dirfd import FOLDER, close, open_folder, remove_content
from fffs.files.rights import set_mode

# Leftovers of a writer that was killed are recognised by this name, and as nobody's by their lock: the writer holds
# one.
SUFFIX = ".fffs-tmp"

# What flock says where there are no locks: some FUSE, 9p, Lustre without the option flock, NFS without a lock service.
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)

LARGE = 4096  # names of a folder from which on it is not listed for each file that is written there
SHARE = 0.01  # of the time that goes by, for listing one such folder again and again
FOLDERS_KEPT = 256
_large_folders: dict[tuple[int, int], tuple[float, list[bytes]]] = {}  # until when they are believed, leftovers

_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def temporary_names(name: bytes) -> re.Pattern[bytes]:
    """What the temporary files of a target called ``name`` are called. Long names must leave room for the rest."""
    return re.compile(rb"\.%b\.[0-9a-f]{12}%b" % (re.escape(name[:200]), re.escape(SUFFIX.encode())), re.DOTALL)


def temporary_name(name: bytes) -> bytes:
    """A new one of these."""
    return b".%b.%b%b" % (name[:200], secrets.token_hex(6).encode(), SUFFIX.encode())


def lock(fd: int, how: int) -> bool:
    """Lock an open file or folder as flock(2) does; False where its file system has no locks. Raises OSError."""
    try:
        fcntl.flock(fd, how)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return False
    return True


def create_locked_file(folder: int, name: bytes) -> tuple[int, bytes]:
    """A new file whose lock this process holds, if it can be locked: its descriptor and name."""
    while True:
        temporary = temporary_name(name)
        try:
            fd = above_standard(os.open(temporary, _NEW_FILE, 0o600, dir_fd=folder))
        except FileExistsError:
            continue  # by chance, or because somebody wants us to write there
        except OSError:
            raise
        except BaseException:  # an interrupt, which is raised when the file is there already
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise
        try:
            lock(fd, fcntl.LOCK_EX)
            if is_there(folder, temporary):
                return fd, temporary
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            close(fd)
            raise
        close(fd)


def create_locked_folder(parent: int, name: bytes) -> tuple[int, bytes]:
    """A new folder whose lock this process holds, if it can be locked: its descriptor and name."""
    while True:
        temporary = temporary_name(name)
        try:
            os.mkdir(temporary, 0o700, dir_fd=parent)
        except FileExistsError:
            continue
        except OSError:
            raise
        except BaseException:  # as above
            with contextlib.suppress(OSError):
                os.rmdir(temporary, dir_fd=parent)
            raise
        try:
            fd = open_folder(temporary, parent, force=True)  # a umask may forbid it even to us
        except FileNotFoundError:
            continue  # another took it for a leftover before it was locked
        except BaseException:
            with contextlib.suppress(OSError):
                os.rmdir(temporary, dir_fd=parent)
            raise
        try:
            lock(fd, fcntl.LOCK_EX)
            set_mode(fd, 0o700)
            if is_there(parent, temporary):
                return fd, temporary
        except BaseException:
            remove_folder(parent, temporary, fd)
            close(fd)
            raise
        close(fd)


def is_there(folder: int, name: bytes) -> bool:
    """Whether there is something of that name: another writer may have taken it for a leftover before it was locked.

    Not told by inode numbers or numbers of links, which some file systems make up.
    """
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def is_named(folder: int, name: bytes, fd: int) -> bool:
    """Whether the name leads to what is open as fd."""
    try:
        return os.path.samestat(os.stat(name, dir_fd=folder, follow_symlinks=False), os.fstat(fd))
    except OSError:
        return False


def remove_folder(parent: int, name: bytes, fd: int) -> None:
    """Remove a folder that we made, open as fd, as far as possible; not when it has been given another name."""
    with contextlib.suppress(OSError):
        if is_there(parent, name):
            remove_content(fd)
            os.rmdir(name, dir_fd=parent)


def _find_leftovers(place: int, name: bytes) -> list[bytes]:
    """What bears the name of a temporary file or folder of the target."""
    ours = temporary_names(name)
    try:
        return [entry for entry in _leftovers_in(place) if ours.fullmatch(entry)]
    except OSError:
        return []  # a folder that cannot be listed can be written to all the same


def _leftovers_in(place: int) -> list[bytes]:
    """What is called as temporary files and folders of any target are. A large folder is not listed for each target:
    else who writes a million files there lists it a million times. Raises OSError.
    """
    status = os.fstat(place)
    key = status.st_dev, status.st_ino
    begin = time.monotonic()
    until, found = _large_folders.get(key, (begin, []))
    if begin < until:
        return found
    fd = os.open(b".", FOLDER, dir_fd=place)
    try:
        entries = os.listdir(fd)
    finally:
        close(fd)
    found = [os.fsencode(entry) for entry in entries if entry.endswith(SUFFIX)]
    if len(entries) >= LARGE:
        if len(_large_folders) >= FOLDERS_KEPT:
            _large_folders.clear()
        end = time.monotonic()
        _large_folders[key] = end + (end - begin) / SHARE, found
    return found


def remove_leftover_files(folder: int, name: bytes) -> None:
    """Remove what killed writers of the same target left: their locks are free."""
    for entry in _find_leftovers(folder, name):
        with contextlib.suppress(OSError):  # somebody is writing it, or it is gone, or it is nothing of ours
            fd = _open_leftover(folder, entry)
            try:
                if lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB):
                    os.unlink(entry, dir_fd=folder)
            finally:
                close(fd)


def _open_leftover(folder: int, entry: bytes) -> int:
    """For writing if we may: NFS gives an exclusive lock to nobody else."""
    flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a FIFO of that name must not stop us
    try:
        return os.open(entry, os.O_RDWR | flags, dir_fd=folder)
    except PermissionError:
        return os.open(entry, os.O_RDONLY | flags, dir_fd=folder)


def remove_leftover_folders(parent: int, name: bytes) -> None:
    """Remove what killed processes left that unpacked into the same target: their locks are free."""
    for entry in _find_leftovers(parent, name):
        with contextlib.suppress(OSError):
            mode = stat.S_IMODE(os.stat(entry, dir_fd=parent, follow_symlinks=False).st_mode)
            try:
                fd, forced = open_folder(entry, parent), False
            except PermissionError:
                fd, forced = open_folder(entry, parent, force=True), True
            try:
                if not _remove_unlocked(parent, entry, temporary_name(name), fd) and forced:
                    os.fchmod(fd, mode)  # its owner may have completed it, and be about to rename it
            finally:
                close(fd)


def _remove_unlocked(parent: int, entry: bytes, ours: bytes, fd: int) -> bool:
    """Remove a leftover, open as fd, unless it has an owner; False: it has, or that cannot be told.

    It gets another name first. Where its owner's lock cannot be seen, as from another machine, the owner then finds
    nothing to rename, and does not put in place what is half removed.
    """
    try:
        if not lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB) or not is_named(parent, entry, fd):
            return False
        os.rename(entry, ours, src_dir_fd=parent, dst_dir_fd=parent)
    except OSError:
        return False
    if is_named(parent, ours, fd):
        remove_folder(parent, ours, fd)
    return True
