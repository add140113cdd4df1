"""Modification times as 64 bits hold them: in nanoseconds since 1970, for the years 1678 to 2262.

File systems have more: ext4 has times until 2446, and Btrfs those of any year.
"""

from __future__ import annotations

from typing import Final

MTIME_MIN: Final = -(2**63)
MTIME_MAX: Final = 2**63 - 1


def nearest_time(nanoseconds: int) -> int:
    """Return a time, or the nearest one that 64 bits hold."""
    return min(max(nanoseconds, MTIME_MIN), MTIME_MAX)
