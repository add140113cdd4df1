"""Writes open files to the disk: with one call for all files of a file system, where that is enough."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable

from fffs.files.file_systems import is_of_this_machine
from fffs.native import lib


def sync_files(folder: int) -> None:
    """Write the file system of an open folder to the disk: one call instead of one for each file. Raises OSError."""
    if status := lib.fffs_syncfs(folder):
        raise OSError(-status, os.strerror(-status))


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
