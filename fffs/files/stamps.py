"""Stamps: size, modification time and inode, compared to detect that a file changed or was replaced.

The rule is in C (``fffs_unchanged``), because the threads of a mount apply it as well.
"""

from __future__ import annotations

import os
from typing import Any

from fffs.native import ffi, lib


def make_stamp(status: os.stat_result, *, inode: bool = True) -> Any:
    """Return the C stamp of a file. inode: compare device and inode; no if its file system makes inode numbers up."""
    seconds, nanoseconds = divmod(status.st_mtime_ns, 10**9)
    device_and_inode = (status.st_dev, status.st_ino) if inode else (0, 0)
    return ffi.new("fffs_stamp *", (status.st_size, seconds, nanoseconds, *device_and_inode))


def is_unchanged(fd: int, stamp: Any) -> bool:
    """Whether the open file still has that stamp. False if its status cannot be read."""
    return bool(lib.fffs_unchanged(fd, stamp) == 0)
