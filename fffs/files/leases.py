"""open_waiting: opens a file that may be none for reading, and waits for the file server that holds a lease on it.

open(2) of a FIFO waits for a writer, unless it has O_NONBLOCK. With O_NONBLOCK, open(2) of a regular file fails if
another process has a lease for writing on it (F_SETLEASE), and has the kernel ask for the lease. The servers of NFS and
SMB take such leases for their clients: delegations, oplocks. The kernel ends a lease that is not given up within the
seconds of /proc/sys/fs/lease-break-time, 45 by default.
"""

from __future__ import annotations

import os
import time
from typing import Final

from fffs.base.stopping import Stopped, current_flag

_FIRST: Final = 0.01
_LATEST: Final = 0.5  # seconds between two attempts, at most
_PATIENCE: Final = 60.0


def open_waiting(name: str | bytes, flags: int = 0, dir_fd: int | None = None) -> int:
    """Return a descriptor, as os.open does for O_RDONLY, O_CLOEXEC, O_NONBLOCK and the flags.

    Raises OSError; or Stopped, if the result is not needed any more.
    """
    pause, end = _FIRST, time.monotonic() + _PATIENCE
    while True:
        try:
            return os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flags, dir_fd=dir_fd)
        except BlockingIOError:
            if (flag := current_flag()) and flag.is_set:
                raise Stopped from None
            if time.monotonic() > end:
                raise
        time.sleep(pause)
        pause = min(2 * pause, _LATEST)
