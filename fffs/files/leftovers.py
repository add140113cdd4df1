"""Removal of the temporary files and folders that killed writers left.

They are recognised by their names, and by a lock that is free; folders in places that others may write to also by a
mark, their owner and their mode. On a file system without locks they stay: nothing tells them from the file of a living
writer; a waiting writer's file may be old, too.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time

from fffs.files.dirfd import open_folder, reopened
from fffs.files.rights import is_trusted
from fffs.files.temporary import (
    MARK,
    SUFFIX,
    close_locked,
    is_marked,
    is_named,
    lock,
    lock_name,
    remove_folder,
    temporary_name,
    temporary_names,
)

LARGE = 4096  # names in a folder from which it is not listed for each new file
SHARE = 0.01  # of the elapsed time may be spent on listing such a folder again
FOLDERS_KEPT = 256
_large_folders: dict[tuple[int, int], tuple[float, list[bytes]]] = {}  # valid until, leftovers


def _find_leftovers(place: int, name: bytes) -> list[bytes]:
    """Return the names of temporary files and folders of a target."""
    ours = temporary_names(name)
    try:
        return [entry for entry in _leftovers_in(place) if ours.fullmatch(entry) and entry != lock_name(name)]
    except OSError:
        return []  # a folder may be writable but not readable


def _leftovers_in(place: int) -> list[bytes]:
    """Return the names of temporary files and folders of all targets. Raises OSError.

    A large folder is not listed for each target: a writer of a million files would list it a million times.
    """
    status = os.fstat(place)
    key = status.st_dev, status.st_ino
    begin = time.monotonic()
    until, found = _large_folders.get(key, (begin, []))
    if begin < until:
        return found
    with reopened(place) as fd:
        entries = os.listdir(fd)
    found = [os.fsencode(entry) for entry in entries if entry.endswith(SUFFIX)]
    if len(entries) >= LARGE:
        if len(_large_folders) >= FOLDERS_KEPT:
            _large_folders.clear()
        end = time.monotonic()
        _large_folders[key] = end + (end - begin) / SHARE, found
    return found


def remove_leftover_files(folder: int, name: bytes) -> None:
    """Remove the temporary files of killed writers of a target, whose locks are free."""
    for entry in _find_leftovers(folder, name):
        with contextlib.suppress(OSError):  # it is being written, or gone, or not a file of ours
            fd = _open_leftover(folder, entry)
            try:
                if _is_unlocked(fd):
                    os.unlink(entry, dir_fd=folder)
            finally:
                close_locked(fd, os.getpid())


def _open_leftover(folder: int, entry: bytes) -> int:
    """Open for writing if permitted: NFS requires that for an exclusive lock."""
    flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # do not block on a FIFO of that name
    try:
        return os.open(entry, os.O_RDWR | flags, dir_fd=folder)
    except PermissionError:
        return os.open(entry, os.O_RDONLY | flags, dir_fd=folder)


def remove_leftover_folders(parent: int, name: bytes) -> list[bytes]:
    """Remove the temporary folders of killed writers of a target, whose locks are free.

    In a folder that other users own or may write to, they can give any folder such a name. There, only those that this
    user made are removed, and the names of others are returned.
    """
    left = []
    for entry in _find_leftovers(parent, name):
        with contextlib.suppress(OSError):
            mode = stat.S_IMODE(os.stat(entry, dir_fd=parent, follow_symlinks=False).st_mode)
            try:
                fd, forced = open_folder(entry, parent), False
            except PermissionError:
                fd, forced = open_folder(entry, parent, force=True), True
            try:
                removed = False
                if is_trusted(parent) or _is_ours(fd):
                    removed = _remove_unlocked(parent, entry, temporary_name(name), fd)
                elif _is_unlocked(fd):
                    left.append(entry)
                if not removed and forced:
                    os.fchmod(fd, mode)  # its owner may have completed it and be about to rename it
            finally:
                close_locked(fd, os.getpid())
    return left


def _is_ours(fd: int) -> bool:
    """Whether this user made an open temporary folder. Raises OSError.

    Who may write to a folder may mark it, too, and keeps the mark when it is closed: ours are nobody else's from the
    beginning.
    """
    status = os.fstat(fd)
    return is_marked(fd, MARK) and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def _is_unlocked(fd: int) -> bool:
    """Whether no writer holds the lock of an open file; then it is locked. False also if that is unknown."""
    try:
        return lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False


def _remove_unlocked(parent: int, entry: bytes, ours: bytes, fd: int) -> bool:
    """Remove a leftover folder, open as ``fd``. Returns False if it has an owner, or that is unknown.

    It is renamed first. If the owner's lock is invisible, as from another machine, the owner then finds nothing to
    rename, and does not put a half-removed folder in place.
    """
    try:
        if not _is_unlocked(fd) or not is_named(parent, entry, fd):
            return False
        os.rename(entry, ours, src_dir_fd=parent, dst_dir_fd=parent)
    except OSError:
        return False
    if is_named(parent, ours, fd):
        remove_folder(parent, ours, fd)
    return True
