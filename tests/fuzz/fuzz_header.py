"""Fuzzes the header of record files: those that the format's definition accepts are accepted, with the same numbers.

Input: one byte (1: compare the checksum of the metadata; 2: correct it first), then the file.
"""

from __future__ import annotations

from fuzz import packs, surface
from fuzz.cursor import Cursor


def one_input(data: bytes) -> None:
    """Run the target on one input."""
    cursor = Cursor(data)
    mode, file = cursor.take(1), cursor.rest()
    surface.check_index(packs.with_checksums(file) if mode & 2 else file, checked=bool(mode & 1))
