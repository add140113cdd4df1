"""The page cache: reads files into it, drops them from it, and tells what is in it."""

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
    """Return the share of a file in the page cache, from 0 to 1."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        pages = np.zeros(-(-len(view) // mmap.PAGESIZE), np.uint8)
        address = np.frombuffer(view, np.uint8).ctypes.data
        if _mincore(address, len(view), pages.ctypes.data) != 0:
            raise OSError(ctypes.get_errno(), "mincore")
        return float((pages & 1).mean())


def warm(path: Path) -> None:
    """Read a file into the page cache. Some systems drop idle pages: call this directly before measuring."""
    with path.open("rb", buffering=0) as file:
        while file.readinto(_buffer):
            pass


def drop(path: Path) -> None:
    """Drop a file from the page cache. Raises RuntimeError if it stays."""
    for _ in range(TRIES):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        left = cached(path)
        if left <= 0.001:
            return
        time.sleep(0.05)  # pages that the kernel is still reading ahead stay a little longer
    raise RuntimeError(f"{path}: {left:.1%} of it cannot be dropped from the page cache; is it open elsewhere?")


def have_memory(size: int) -> None:
    """Make the host of a virtual machine provide this many bytes of free memory.

    A virtual machine returns free memory to its host, and getting it back takes time: 2 GB of new pages in the page
    cache took from one second to four.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    mmap.mmap(-1, max(min(size, available_memory() // 2), mmap.PAGESIZE), flags=flags).close()


def bytes_from_disk() -> int:
    """Return how many bytes this process has read from disks."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    raise RuntimeError("/proc/self/io has no read_bytes")
