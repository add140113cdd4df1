"""Stamps: whether a file that is read is still what it was when it was opened, to judge by its size and modification
time. The rule is C's (``fffs_unchanged``), because the threads of a mount ask as well.
"""

from __future__ import annotations

import os
from typing import Any

from fffs.native import ffi, lib


def make_stamp(status: os.stat_result, least: int = -1) -> Any:
    """The C stamp of a file with that status. least: the size that a file keeps to which somebody may append; -1:
    nobody may.
    """
    seconds, nanoseconds = divmod(status.st_mtime_ns, 10**9)
    return ffi.new("fffs_stamp *", (status.st_size, seconds, nanoseconds, least))


def is_unchanged(fd: int, stamp: Any) -> bool:
    """Whether the open file has still that stamp; not when its status cannot be read."""
    return bool(lib.fffs_unchanged(fd, stamp) == 0)
