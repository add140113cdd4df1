"""Modification times as a tree can hold them."""

from __future__ import annotations

from collections.abc import Callable

from fffs.base.times import nearest_time

FAR = "its time is outside the years 1678 to 2262; the nearest possible time was packed"


def nearest_mtime(nanoseconds: int, shown: Callable[[], str], warn: Callable[[str], None]) -> int:
    """Return the modification time, or the nearest that a node can have, and then warn with the name ``shown()``."""
    nearest = nearest_time(nanoseconds)
    if nearest != nanoseconds:
        warn(f"{shown()}: {FAR}")
    return nearest
