"""Ranges of a file in memory, mapped for a block, and freed. They begin at multiples of the page size."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def mapped(fd: int, begin: int, end: int, write: bool = False) -> Iterator[Any]:
    """Yield a range of a file that nobody truncates, as a buffer."""
    if begin == end:
        yield b""
        return
    access = mmap.ACCESS_WRITE if write else mmap.ACCESS_READ
    pages = mmap.mmap(fd, end - begin, offset=begin, access=access)
    try:
        yield pages
    finally:
        with contextlib.suppress(BufferError):  # the frames of an exception keep a view
            pages.close()


def free(fd: int, begin: int, end: int) -> None:
    """Free the memory of a range, which then reads as zeros."""
    with mmap.mmap(fd, end - begin, offset=begin) as pages:
        pages.madvise(mmap.MADV_REMOVE)
