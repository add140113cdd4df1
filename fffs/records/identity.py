"""Identity: whether files that are opened again are those that they were, here or on another machine.

Copies of readers open their files anew. In the meantime somebody may have put other files there, and then record 7 is
another one, with no error to show for it. What identifies a file must hold for its copies on other machines, which have
other inodes and times: its size, where its records lie, and their checksums, all of which the index has. A file without
checksums can be written anew with records as long as before; its modification time is compared as well, where that of
the same file could be known: on the same device, as long as the machine was not started anew.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from fffs.files.file import File
from fffs.native import engine
from fffs.native.engine import CHECK_NONE
from fffs.records.index import RecordIndex

BOOT_ID = "/proc/sys/kernel/random/boot_id"


class Identity(NamedTuple):
    """What a file is known by. ``framing`` and ``checksums`` are CRC-32 of tables of its index."""

    size: int
    framing: int
    check: int
    checksums: int
    place: tuple[str, int]
    mtime: int

    def is_that_of(self, other: Identity) -> bool:
        """Whether both can be of one file, or of copies of it."""
        if (self.size, self.framing) != (other.size, other.framing):
            return False
        if self.check == other.check != CHECK_NONE:
            return self.checksums == other.checksums
        return self.place != other.place or not self.place[0] or self.mtime == other.mtime


def identify(index: RecordIndex, file: File) -> Identity:
    """The identity of a file with this index, as it was when it was opened."""
    # In each format a record ends where the next one begins, or as many bytes before that for all records.
    framing = engine.crc32(np.ascontiguousarray(index.ends[-1:]), engine.crc32(np.ascontiguousarray(index.starts)))
    checksums = 0 if index.checksums is None else engine.crc32(np.ascontiguousarray(index.checksums))
    place = (_boot_id(), file.device) if file.device else ("", 0)
    return Identity(index.file_size, framing, index.check, checksums, place, file.mtime_ns)


@functools.cache
def _boot_id() -> str:
    """Names what device numbers hold for: this machine, until it is started anew."""
    try:
        with open(BOOT_ID) as file:
            return file.read().strip()
    except OSError:  # then times tell nothing
        return ""
