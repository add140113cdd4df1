"""Inode numbers: whether a file system's say which file is which, and how names of one file are found where not.

File systems in user space often make their numbers up: another one at each lookup, or one for everything. Those of 9p
are what another machine says, those of CIFS as well, and FAT has none: the kernel forgets the ones it gave.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
from typing import Final

# What statfs(2) calls them: FUSE, 9p, CIFS (three versions), FAT, exFAT.
_UNRELIABLE: Final = {0x65735546, 0x01021997, 0xFF534D42, 0xFE534D42, 0x517B, 0x4D44, 0x2011BAB0}
_PIECE: Final = 1 << 20
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_libc = ctypes.CDLL(None, use_errno=True)


def are_reliable(fd: int) -> bool:
    """Whether what is open as fd is on a file system in which one file has one inode number, and no other has it."""
    buffer = ctypes.create_string_buffer(512)  # more than any struct statfs; it begins with a long, the type
    if _libc.fstatfs(fd, buffer):
        return False
    kind = int.from_bytes(buffer.raw[: ctypes.sizeof(ctypes.c_long)], sys.byteorder)
    return kind & 0xFFFFFFFF not in _UNRELIABLE


def place(status: os.stat_result) -> tuple[int, int]:
    """Device and inode."""
    return status.st_dev, status.st_ino


class Reliability:
    """``are_reliable`` for each of the file systems that a walk comes through."""

    def __init__(self) -> None:
        self._known: dict[int, bool] = {}  # device -> whether they are

    def of(self, status: os.stat_result, folder: int) -> bool:
        """Of what has that status and was found in the folder that is open."""
        known = self._known.get(status.st_dev)
        if known is None:
            if os.fstat(folder).st_dev != status.st_dev:
                return False  # a file that something is mounted on
            known = self._known[status.st_dev] = are_reliable(folder)
        return known


def digest(folder: int, name: bytes) -> bytes:
    """What tells the content of a file in an open folder from every other content. Raises OSError."""
    hashed = hashlib.blake2b()
    with open(os.open(name, _FILE, dir_fd=folder), "rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            hashed.update(piece)
    return hashed.digest()
