"""The page cache: putting a file in, taking it out, and knowing which of the two it is."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from pathlib import Path

import numpy as np

from fffs.base.memory import available_memory

TRIES = 20

_mincore = ctypes.CDLL(None, use_errno=True).mincore
_buffer = bytearray(1 << 20)
_mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


def cached(path: Path) -> float:
    """How much of a file is in the page cache, from 0 to 1."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        pages = np.zeros(-(-len(view) // mmap.PAGESIZE), np.uint8)
        address = np.frombuffer(view, np.uint8).ctypes.data
        if _mincore(address, len(view), pages.ctypes.data) != 0:
            raise OSError(ctypes.get_errno(), "mincore")
        return float((pages & 1).mean())


def warm(path: Path) -> None:
    """Read a file, so that it is in the page cache. Some systems drop what is idle: call it right before measuring."""
    with path.open("rb", buffering=0) as file:
        while file.readinto(_buffer):
            pass


def drop(path: Path) -> None:
    """Take a file out of the page cache; raises RuntimeError when it stays."""
    for _ in range(TRIES):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        left = cached(path)
        if left <= 0.001:
            return
        time.sleep(0.05)  # the kernel keeps a page a moment longer that it is still reading ahead
    raise RuntimeError(f"{path}: {left:.1%} of it cannot be dropped from the page cache; is it open elsewhere?")


def have_memory(size: int) -> None:
    """See to it that so many bytes of free memory are really there.

    A virtual machine gives free memory back to its host, and pays for getting it again: 2 GB of new pages in the page
    cache took from one second to four, whoever wrote them.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    mmap.mmap(-1, max(min(size, available_memory() // 2), mmap.PAGESIZE), flags=flags).close()


def bytes_from_disk() -> int:
    """How many bytes this process has had fetched from disks."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    raise RuntimeError("/proc/self/io has no read_bytes")
