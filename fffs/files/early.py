"""EarlyWriting: has what is written to a large file reach the disk while the rest is made."""

from __future__ import annotations

from typing import Final

from fffs.native import lib

# Large enough for a disk to write it in one go, small against what the kernel collects before it begins by itself
# (a tenth of the memory, or half a minute), which then keeps whoever syncs waiting.
PORTION: Final = 8 << 20


class EarlyWriting:
    """What was written to a file open as ``fd``, which stays the caller's. May be used by several threads."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._waiting = 0

    def wrote(self, size: int) -> None:
        """Count bytes that were written; each PORTION of them is sent on its way to the disk, without waiting for it.
        Says nothing of failures: they stay for the file's fsync.
        """
        self._waiting += size  # of two threads at once one may be lost, which does no harm
        if self._waiting >= PORTION:
            self._waiting = 0
            lib.fffs_start_writing(self._fd)
