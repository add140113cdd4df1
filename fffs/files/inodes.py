"""Inode numbers: whether a file system's say which file is which, and how names of one file are found where not.

File systems in user space often make their numbers up: another one at each lookup, or one for everything. Those of 9p
are what another machine says, those of CIFS as well, and FAT has none: the kernel forgets the ones it gave.
"""

from __future__ import annotations

import hashlib
import os
from typing import Final

from fffs.files.file_systems import has_inode_numbers

_PIECE: Final = 1 << 20
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def place(status: os.stat_result) -> tuple[int, int]:
    """Device and inode."""
    return status.st_dev, status.st_ino


class Reliability:
    """``has_inode_numbers`` for each of the file systems that a walk comes through."""

    def __init__(self) -> None:
        self._known: dict[int, bool] = {}  # device -> whether they are

    def of(self, status: os.stat_result, folder: int) -> bool:
        """Of what has that status and was found in the folder that is open."""
        known = self._known.get(status.st_dev)
        if known is None:
            if os.fstat(folder).st_dev != status.st_dev:
                return False  # a file that something is mounted on
            known = self._known[status.st_dev] = has_inode_numbers(folder)
        return known


def digest(folder: int, name: bytes) -> bytes:
    """What tells the content of a file in an open folder from every other content. Raises OSError."""
    hashed = hashlib.blake2b()
    with open(os.open(name, _FILE, dir_fd=folder), "rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            hashed.update(piece)
    return hashed.digest()
