"""Writes tar archives: one, or shards in which the files of each sample are together, as WebDataset reads them."""

from __future__ import annotations

import io
import itertools
import stat
from array import array
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Final

import numpy as np

from fffs.base.jobs import Jobs
from fffs.converting.foreign.exported import (
    PIECE,
    Buffer,
    Exported,
    ExportedPack,
    ExportEntry,
    ExportReading,
    counts_of,
    groups_of,
)
from fffs.converting.foreign.tar_headers import BLOCK, header_of
from fffs.converting.verifying import differs
from fffs.errors import UnsupportedError
from fffs.files.file import File, FileStream
from fffs.packing.shared_records import refuse_multiplied
from fffs.records.index import Int64Array

RECORD: Final = 10240  # tar(1) pads archives to a multiple of this


def sizes_of_groups(content: Exported) -> Int64Array:
    """Return the bytes that the members of each sample take in an archive: int64[groups]."""
    found = array("q")
    for group in groups_of(content.entries()):
        found.append(sum(len(header_of(entry)) + entry.size + -entry.size % BLOCK for entry in group))
    return np.array(found, np.int64)


def prepare(content: Exported, split: bool) -> list[str]:
    """See ``Export``."""
    if not isinstance(content, ExportedPack):
        return []
    refuse_multiplied(content.view)
    if split and content.total_bytes > 2 * content.own_bytes:
        raise UnsupportedError(
            f"{content.shown}: its hard links would become copies, which take more bytes than all files; "
            "write one archive"
        )
    if not content.has_links:
        return []
    return [f"{content.shown}: has symbolic or hard links, which tar keeps and WebDataset's readers skip"]


class TarPass:
    """Makes the bytes of all archives, one after the other. See ``Pass``."""

    def __init__(self, content: Exported, bounds: Sequence[int], reading: ExportReading, work: Jobs) -> None:
        """bounds: the first groups of all archives but the first."""
        self._reading, self._work = reading, work
        self._groups = groups_of(content.entries())
        self._counts = counts_of(bounds)
        self._member = 0  # its number in the archive

    def write(self, sink: BinaryIO) -> None:
        """Write the next archive."""
        for piece in self._archive():
            sink.write(piece)

    def compare(self, file: File, target: str) -> None:
        """Raise RecordError unless a file is the next archive."""
        with io.BufferedReader(FileStream(file), PIECE) as written:
            for piece in self._archive():
                for at in range(0, len(piece), PIECE):
                    part = bytes(piece[at : at + PIECE])
                    if written.read(len(part)) != part:
                        raise differs(target, self._member)
            if written.read(1):
                raise differs(target, self._member)

    def _archive(self) -> Iterator[Buffer]:
        size = self._member = 0
        for head, pieces in self._reading.read(self._members(next(self._counts))):
            yield head
            size += len(head)
            for piece in pieces:
                yield piece
                size += len(piece)
                self._work.count(len(piece))
            if padding := -size % BLOCK:
                yield bytes(padding)
                size += padding
            self._member += 1
        yield bytes(2 * BLOCK + -(size + 2 * BLOCK) % RECORD)

    def _members(self, groups: int | None) -> Iterator[tuple[bytes, ExportEntry | None]]:
        """Yield the header of each member, and its entry if bytes follow. A further name of a file is a hard link if
        the archive has the first one, and a copy otherwise.
        """
        paths: dict[int, bytes] = {}  # node -> path, in this archive, of what has several names
        for group in itertools.islice(self._groups, groups):
            for entry in group:
                linked = paths.get(entry.node)
                if linked is None and entry.names > 1:
                    paths[entry.node] = entry.path
                yield header_of(entry, linked), entry if stat.S_ISREG(entry.mode) and linked is None else None
