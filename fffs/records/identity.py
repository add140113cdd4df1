"""Identity: whether files that are opened again are those that they were, here or on another machine.

Copies of readers open their files anew. In the meantime somebody may have put other files there, and then record 7 is
another one, with no error to show for it. What identifies a file must hold for its copies on other machines, which have
other inodes and times: its size, where its records lie, and their checksums, all of which the index has. A file without
checksums can be written anew with records as long as before; its modification time is compared as well, where that of
the same file could be known: on the same device, as long as the machine was not started anew.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fffs.errors import SourceChangedError
from fffs.native import engine
from fffs.native.engine import CHECK_NONE
from fffs.records.index import RecordIndex

if TYPE_CHECKING:
    from fffs.records.store import RecordStore

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


def identify(index: RecordIndex, status: os.stat_result) -> Identity:
    """The identity of a file with this index. status: when it was opened."""
    # In each format a record ends where the next one begins, or as many bytes before that for all records.
    framing = engine.crc32(np.ascontiguousarray(index.ends[-1:]), engine.crc32(np.ascontiguousarray(index.starts)))
    checksums = 0 if index.checksums is None else engine.crc32(np.ascontiguousarray(index.checksums))
    place = _boot_id(), status.st_dev
    return Identity(index.file_size, framing, index.check, checksums, place, status.st_mtime_ns)


def refuse_others(store: RecordStore, before: Sequence[Identity]) -> None:
    """Raise SourceChangedError, with the store closed, unless its files are those with these identities, in order."""
    paths = [file.index.path for file in store.files]
    changed = [path for path, now, then in zip(paths, store.identity, before, strict=False) if not now.is_that_of(then)]
    if len(paths) == len(before) and not changed:
        return
    store.close()
    if changed:
        raise SourceChangedError(
            f"{changed[0]}: not the file that it was: it was replaced or changed in the meantime; open it anew"
        )
    where = paths[0] if paths else "the source"
    raise SourceChangedError(f"{where}: there are {len(paths)} files now, and were {len(before)}; open them anew")


def refuse_replaced(store: RecordStore, open_again: Callable[[], RecordStore]) -> None:
    """Raise SourceChangedError when a copy of the reader, made now, would not have the files that its store has.

    Who starts processes learns of it here; of one that cannot begin he would learn little. What is not there is for the
    copy to find, which may be made on another machine.

    Args:
        store: the reader's.
        open_again: opens the same paths.

    """
    for file in store.files:
        try:
            now = os.stat(file.index.path)
        except OSError:
            continue
        if _key(now) != _key(file.status):
            again = open_again()
            refuse_others(again, store.identity)
            again.close()
            return


def _key(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


@functools.cache
def _boot_id() -> str:
    """Names what device numbers hold for: this machine, until it is started anew."""
    try:
        with open(BOOT_ID) as file:
            return file.read().strip()
    except OSError:  # then times tell nothing
        return ""
