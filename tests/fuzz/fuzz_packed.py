"""Fuzzes whole files, packed folders above all: what opens lists, reads and verifies by its bytes.

Input: one byte (1: compare checksums; 2: those of records and metadata are made right first; 4: a trailer's too), then
the file.
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
