"""Plain record files: one file per record, named by its number."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from fffs.errors import UnsupportedError, UsageError
from fffs.tree.tree import NAME_MAX, Tree

LEAST_DIGITS = 6


def digits_for(n: int) -> int:
    """Return the width of the zero-padded numbers of n things."""
    return max(LEAST_DIGITS, len(str(max(n - 1, 0))))


def number_names(n: int) -> Iterator[bytes]:
    """Yield the numbers of n things from 0 on, zero-padded to one width, as names."""
    digits = digits_for(n)
    return (b"%0*d" % (digits, k) for k in range(n))


def numbered(numbers: npt.NDArray[np.int64], digits: int, ending: bytes) -> npt.NDArray[np.uint8]:
    """Return the names of numbered files: uint8[n, digits + len(ending)]."""
    names = np.empty((len(numbers), digits + len(ending)), np.uint8)
    for k in range(digits):
        names[:, digits - 1 - k] = numbers // 10**k % 10 + ord("0")
    names[:, digits:] = np.frombuffer(ending, np.uint8)
    return names


def build(n: int, suffix: str, mtime: int, source: str) -> Tree:
    """Build a tree of n files ``000000`` to n - 1 in the root, zero-padded to one width, each name ending in suffix.

    Raises:
        UsageError: the suffix cannot be part of a name. UnsupportedError: there are too many records.

    """
    ending = os.fsencode(suffix)
    digits = digits_for(n)
    if b"/" in ending or b"\0" in ending or digits + len(ending) > NAME_MAX:
        raise UsageError(f"--suffix {suffix!r}: cannot end a file name; omit '/' and NUL, or use a shorter one")
    width = digits + len(ending)
    if n * width >= 2**32 - 1:
        raise UnsupportedError(f"{source}: {n} records are more than one folder can show; mount the parts separately")
    numbers = np.arange(n, dtype=np.int64)
    names = numbered(numbers, digits, ending)
    # Numbers of one width sort like their bytes, so the entries are already in order.
    nodes = n + 1
    mode = np.full(nodes, stat.S_IFREG | 0o644, np.uint16)
    nlink, ref, count = np.ones(nodes, np.uint32), np.zeros(nodes, np.uint32), np.zeros(nodes, np.uint32)
    mode[0], nlink[0], count[0] = stat.S_IFDIR | 0o755, 2, n
    ref[1:] = numbers
    return Tree(
        mtime=np.full(nodes, mtime, np.int64),
        nlink=nlink,
        ref=ref,
        count=count,
        parent=np.zeros(nodes, np.uint32),
        mode=mode,
        name_offsets=np.arange(n + 1, dtype=np.uint32) * np.uint32(width),
        entry_nodes=np.arange(1, n + 1, dtype=np.uint32),
        names=names.reshape(-1),
        targets=np.empty(0, np.uint8),
    ).validate(n, source)
