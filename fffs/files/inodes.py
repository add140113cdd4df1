"""Inode numbers: whether they identify files, and a digest that finds hard links where they do not.

File systems in user space often invent numbers: a new one at each lookup, or one for all files. The numbers of 9p and
CIFS come from another machine. FAT has none: the kernel assigns numbers and forgets them.
"""

from __future__ import annotations

import hashlib
import os
from typing import Final

from fffs.files.file_systems import has_inode_numbers

_PIECE: Final = 1 << 20
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def place(status: os.stat_result) -> tuple[int, int]:
    """Return device and inode."""
    return status.st_dev, status.st_ino


class Reliability:
    """Remembers ``has_inode_numbers`` for each file system of a walk."""

    def __init__(self) -> None:
        self._known: dict[int, bool] = {}  # device -> whether its numbers are reliable

    def of(self, status: os.stat_result, folder: int) -> bool:
        """Whether the inode number in ``status``, of an entry of the open folder, is reliable."""
        known = self._known.get(status.st_dev)
        if known is None:
            if os.fstat(folder).st_dev != status.st_dev:
                return False  # a mount point
            known = self._known[status.st_dev] = has_inode_numbers(folder)
        return known


def digest(folder: int, name: bytes) -> bytes:
    """Return a cryptographic digest of a file in an open folder. Raises OSError."""
    hashed = hashlib.blake2b()
    with open(os.open(name, _FILE, dir_fd=folder), "rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            hashed.update(piece)
    return hashed.digest()
