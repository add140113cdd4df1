"""Fuzzes whole files, mainly packed folders: the lists, records and verdicts of files that open agree with their bytes.

Input: one byte (1: compare checksums; 2: correct those of records and metadata first; 4: also the trailer's), then the
file.
"""

from __future__ import annotations

from fuzz import packs, surface
from fuzz.cursor import Cursor


def one_input(data: bytes) -> None:
    """Run the target on one input."""
    cursor = Cursor(data)
    mode, file = cursor.take(1), cursor.rest()
    if mode & 2:
        file = packs.with_checksums(file, trailer_too=bool(mode & 4))
    surface.check_file(file, checked=bool(mode & 1))
