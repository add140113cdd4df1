"""ReadPolicy: how the records of a store are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class ReadPolicy:
    """How a store reads records. Chosen when it is made; another one takes its place as a whole.

    ``check``: compare checksums, where there are some. ``direct``: read batches past the page cache, where all files
    can be. ``around``: what must come from a disk comes with all of its aligned block of so many bytes; 0: alone.
    """

    check: bool = True
    direct: bool = False
    around: int = 0


CHECKED: Final = ReadPolicy()
"""How a store reads unless it is told otherwise."""
