"""WriteBack: starts write-back of a large file while the rest is written."""

from __future__ import annotations

from typing import Final

from fffs.native import lib

# Large enough for one efficient write to the disk. Small against the data that the kernel collects before it starts by
# itself (a tenth of the memory, or half a minute), for which fsync would have to wait.
PORTION: Final = 8 << 20


class WriteBack:
    """Counts what is written to ``fd``, which is the caller's. Thread-safe."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._waiting = 0

    def wrote(self, size: int) -> None:
        """Count written bytes, and start write-back of each PORTION without waiting. fsync reports its failures."""
        self._waiting += size  # not atomic: a lost count only delays write-back
        if self._waiting >= PORTION:
            self._waiting = 0
            lib.fffs_start_writing(self._fd)
