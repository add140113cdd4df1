"""Modification times as a tree can hold them."""

from __future__ import annotations

from collections.abc import Callable

# The range of a node's modification time, in nanoseconds since 1970.
MTIME_MIN, MTIME_MAX = -(2**63), 2**63 - 1
FAR = "its time is outside the years 1678 to 2262; the nearest possible time was packed"


def nearest_mtime(nanoseconds: int, shown: Callable[[], str], warn: Callable[[str], None]) -> int:
    """Return the modification time, or the nearest that a node can have, and then warn with the name ``shown()``."""
    nearest = min(max(nanoseconds, MTIME_MIN), MTIME_MAX)
    if nearest != nanoseconds:
        warn(f"{shown()}: {FAR}")
    return nearest
