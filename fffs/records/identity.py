"""Identity: whether a file that is opened again has the same records, on this machine or another.

Copies of readers open their files again. If a file was replaced meanwhile, record 7 would be another one, without an
error. A copy of a file on another machine has another inode and other times, so a file is identified by its size, the
positions of its records and their checksums, which the index holds. A file without checksums may be rewritten with
records of the same lengths; its modification time is compared as well, on the same device and before the next reboot.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fffs.base.machine import boot_id
from fffs.files.file import File
from fffs.native.checksums import CHECK_NONE, crc32
from fffs.records.index import RecordIndex


class Identity(NamedTuple):
    """What identifies a file. ``framing`` and ``checksums`` are CRC-32 of tables of its index."""

    size: int
    framing: int
    check: int
    checksums: int
    place: tuple[str, int]
    mtime: int

    def is_that_of(self, other: Identity) -> bool:
        """Whether both can belong to one file or to copies of it."""
        if (self.size, self.framing) != (other.size, other.framing):
            return False
        if self.check == other.check != CHECK_NONE:
            return self.checksums == other.checksums
        return self.place != other.place or not self.place[0] or self.mtime == other.mtime


def identify(index: RecordIndex, file: File) -> Identity:
    """Return the identity of a file with this index, as of opening."""
    # In each format, the distance from a record's end to the next one's begin is the same for all records.
    framing = crc32(np.ascontiguousarray(index.ends[-1:]), crc32(np.ascontiguousarray(index.starts)))
    checksums = 0 if index.checksums is None else crc32(np.ascontiguousarray(index.checksums))
    # Device numbers are valid for this boot. Without its id, times are not compared.
    place = (boot_id(), file.device) if file.device else ("", 0)
    return Identity(index.file_size, framing, index.check, checksums, place, file.mtime_ns)


def joined(identities: Sequence[Identity]) -> Identity:
    """Return what identifies files together, in this order. It has the same size for any number of files."""
    if len(identities) == 1:
        return identities[0]
    checks = {one.check for one in identities}
    of_one_kind = len(checks) == 1
    places = {one.place for one in identities}
    framings = [(one.size, one.framing) for one in identities]
    checksums = [(one.check, one.checksums) for one in identities]
    return Identity(
        size=sum(one.size for one in identities),
        framing=_hash(framings if of_one_kind else [framings, checksums]),
        check=checks.pop() if of_one_kind else CHECK_NONE,
        checksums=_hash(checksums),
        place=places.pop() if len(places) == 1 else ("", 0),
        mtime=_hash([one.mtime for one in identities]),
    )


def _hash(values: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(values).encode(), digest_size=8).digest(), "little")
