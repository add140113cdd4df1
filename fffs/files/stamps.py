"""Stamps: size and modification time, compared to detect that a file changed since it was opened.

The rule is in C (``fffs_unchanged``), because the threads of a mount apply it as well.
"""

from __future__ import annotations

import os
from typing import Any

from fffs.native import ffi, lib


def make_stamp(status: os.stat_result) -> Any:
    """Return the C stamp of a file."""
    seconds, nanoseconds = divmod(status.st_mtime_ns, 10**9)
    return ffi.new("fffs_stamp *", (status.st_size, seconds, nanoseconds))


def is_unchanged(fd: int, stamp: Any) -> bool:
    """Whether the open file still has that stamp. False if its status cannot be read."""
    return bool(lib.fffs_unchanged(fd, stamp) == 0)
