"""Inode numbers: whether they identify files, and a digest that finds hard links where they do not.

File systems in user space often invent numbers: a new one at each lookup, or one for all files. The numbers of 9p and
CIFS come from another machine. FAT has none: the kernel assigns numbers and forgets them.
"""

from __future__ import annotations

import hashlib
import os
from typing import Final

from fffs.files.leases import open_waiting

_PIECE: Final = 1 << 20


def place(status: os.stat_result) -> tuple[int, int]:
    """Return device and inode."""
    return status.st_dev, status.st_ino


def digest(folder: int, name: bytes) -> bytes:
    """Return a cryptographic digest of a file in an open folder. Raises OSError."""
    hashed = hashlib.blake2b()
    with open(open_waiting(name, os.O_NOFOLLOW, folder), "rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            hashed.update(piece)
    return hashed.digest()
