"""Writes open files to the disk: with one call for all files of a file system, where that is enough."""

from __future__ import annotations

import contextlib
import errno
import os
from collections import defaultdict, deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from fffs.base.descriptors import above_standard
from fffs.files.dirfd import Way, close, reopened
from fffs.files.file_systems import is_of_this_machine
from fffs.native import lib

SYNCERS: Final = 8  # threads


def sync_files(folder: int) -> None:
    """Write the file system of an open folder to the disk: one call instead of one for each file. Raises OSError."""
    if status := lib.fffs_syncfs(folder):
        raise OSError(-status, os.strerror(-status))


def sync_folder(folder: int) -> None:
    """Write all files below an open folder to the disk, and the names in it. Raises OSError.

    As for ``sync_together``, one call is enough on a disk of this machine. On other file systems it only hands the
    pages to the server, and each file is synced after it, except in folders, and of files, that this user may not open.
    """
    sync_files(folder)
    if is_of_this_machine(folder):
        return
    pending = [b""]
    with Way(folder) as way, ThreadPoolExecutor(SYNCERS) as pool:
        while pending:
            path = pending.pop()
            with contextlib.suppress(PermissionError):
                pending += [os.path.join(path, name) for name in _sync_content(way.go(path), pool)]


def _sync_content(folder: int, pool: ThreadPoolExecutor) -> list[bytes]:
    """Sync the files in a folder, and the folder. Returns the names of folders in it. Raises OSError."""
    with reopened(folder) as fd, os.scandir(fd) as found:
        entries = [
            (os.fsencode(e.name), e.is_dir(follow_symlinks=False), e.is_file(follow_symlinks=False)) for e in found
        ]
    # A server takes several requests at once, and a thread waits for it most of the time.
    deque(pool.map(lambda name: _sync_file(name, folder), [name for name, _, is_file in entries if is_file]), 0)
    sync_open_folder(folder)
    return [name for name, is_folder, _ in entries if is_folder]


def _sync_file(name: bytes, folder: int) -> None:
    try:
        fd = above_standard(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder))
    except PermissionError:
        return
    try:
        os.fsync(fd)
    finally:
        close(fd)


def sync_open_folder(fd: int) -> None:
    """Sync an open folder. A file system that cannot do that returns EINVAL, which is ignored. Raises OSError."""
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def sync_together(fds: Iterable[int]) -> None:
    """Write open files to the disk, with what is needed to read them. Raises OSError.

    On a disk of this machine, the files of a file system are written by one call, which also writes what other programs
    wrote there: each call of fsync(2) waits for the disk. On others, such as FUSE, that call does not wait until the
    server has the bytes.
    """
    systems: dict[int, list[int]] = defaultdict(list)
    for fd in fds:
        systems[os.fstat(fd).st_dev].append(fd)
    for files in systems.values():
        if len(files) > 1 and is_of_this_machine(files[0]):
            sync_files(files[0])
            continue
        for fd in files:
            os.fdatasync(fd)
