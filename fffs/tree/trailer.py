"""The trailer of a packed folder: a Tree and block checksums, as arrays at the end of the last record.

``pickle.loads`` ignores the bytes after STOP, so ffrecord can read such a file. Loading the arrays parses nothing per
file. No section stores an offset: all sizes follow from the counts in the footer, so sections cannot overlap or lie
outside the trailer. FORMATS.md describes each byte.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fffs.errors import MetadataError, UnsupportedError
from fffs.files.file import File
from fffs.files.holes import validate_written
from fffs.native import engine
from fffs.native.checksums import crc32
from fffs.records.index import BlockChecksums, RecordIndex
from fffs.tree.tree import COLUMNS, Tree

MAGIC = b"fffsTREE"
VERSION = 1
# magic, version, alignment, body size, entries, nodes, names size, targets size, big records, blocks, CRC of the body,
# CRC of the footer
FOOTER = struct.Struct("<8sII7QII")
ALIGNMENTS = (0, 9, 12)
"""The logarithms of the multiples, in bytes, at which files begin."""
COUNTS = ("entries", "nodes", "names", "targets", "bigs", "blocks")


@dataclass(frozen=True)
class _Section:
    """One array of the body. Its length is the count of that name in the footer, plus ``extra``."""

    name: str
    dtype: type[np.generic]
    count: str
    extra: int = 0


SECTIONS = (
    *(_Section(name, COLUMNS[name], "nodes") for name in ("mtime", "nlink", "ref", "count", "parent", "mode")),
    _Section("name_offsets", np.uint32, "entries", 1),
    _Section("entry_nodes", np.uint32, "entries"),
    _Section("names", np.uint8, "names"),
    _Section("targets", np.uint8, "targets"),
    _Section("big_records", np.uint32, "bigs"),
    _Section("big_first_blocks", np.uint64, "bigs", 1),
    _Section("block_checksums", np.uint32, "blocks"),
)


def _layout(counts: dict[str, int]) -> tuple[list[tuple[_Section, int, int]], int]:
    """Return (section, offset in the body, items) of each section, at multiples of 8, and the size of the body."""
    at = 0
    places = []
    for section in SECTIONS:
        length = counts[section.count] + section.extra
        places.append((section, at, length))
        at += (length * np.dtype(section.dtype).itemsize + 7) // 8 * 8
    return places, at


def encode(tree: Tree, blocks: BlockChecksums, alignment: int = 0) -> Iterator[bytes | memoryview]:
    """Yield the trailer in parts, including the footer. The arrays of a tree are not copied.

    alignment: one of ``ALIGNMENTS``; not 0: a padding record precedes the record of each file, and the last one.
    """
    arrays: dict[str, npt.NDArray[np.generic]] = {name: getattr(tree, name) for name in COLUMNS}
    arrays |= {
        "big_records": blocks.records,
        "big_first_blocks": blocks.first_blocks,
        "block_checksums": blocks.checksums,
    }
    counts = dict(
        zip(
            COUNTS,
            (
                len(tree.entry_nodes),
                len(tree.mode),
                len(tree.names),
                len(tree.targets),
                len(blocks.records),
                len(blocks.checksums),
            ),
            strict=True,
        )
    )
    places, size = _layout(counts)
    crc = written = 0
    for section, at, length in places:
        data = np.ascontiguousarray(arrays[section.name], np.dtype(section.dtype).newbyteorder("<")).view(np.uint8)
        assert written == at and len(data) == length * np.dtype(section.dtype).itemsize
        for part in (memoryview(data), bytes(-len(data) % 8)):
            crc = crc32(part, crc)
            written += len(part)
            yield part
    footer = FOOTER.pack(MAGIC, VERSION, alignment, size, *counts.values(), crc, 0)[:-4]
    yield footer + struct.pack("<I", crc32(footer))


def has_footer(file: File, index: RecordIndex) -> bool:
    """Return whether a file ends with the footer of a trailer. The index must have a record. Raises ReadError."""
    return _footer(file, index) is not None


def _footer(file: File, index: RecordIndex) -> tuple[Any, ...] | None:
    """Return the fields of the footer, or None if there is none."""
    if index.length(len(index) - 1) < FOOTER.size:
        return None
    footer = file.read_bytes(index.file_size - FOOTER.size, FOOTER.size, "the trailer")
    fields = FOOTER.unpack(footer) if len(footer) == FOOTER.size else (b"",)
    return fields if fields[0] == MAGIC and crc32(footer[:-4]) == fields[-1] else None


def load(file: File, index: RecordIndex) -> tuple[Tree, RecordIndex] | None:
    """Return the validated Tree at the end of a packed folder, and its index with the block checksums and alignment, or
    None if there is no trailer. The index must have a record.

    The tree may refer to all records except the last, which contains the tree itself.

    Raises:
        MetadataError: the trailer is damaged or contradicts itself.
        UnsupportedError: a newer version of fffs wrote it.
        ReadError: the operating system could not read.

    """
    path, room = index.path, index.length(len(index) - 1)
    footer = _footer(file, index)
    if footer is None:
        return None
    _, version, alignment, size, *counts, body_crc, _ = footer
    if version != VERSION or alignment not in ALIGNMENTS:
        raise UnsupportedError(f"{path}: packed by a newer version of fffs (trailer version {version}); update fffs")
    # Check before anything is allocated that the body lies inside the last record and has the size for the counts.
    sizes = dict(zip(COUNTS, counts, strict=True))
    places, expected = _layout(sizes)
    if size != expected or size > room - FOOTER.size:
        raise MetadataError(f"{path}: the trailer contradicts itself; the file is damaged")
    validate_written(file, index.file_size - FOOTER.size - size, size, "its tree")
    body = _read(file, index.file_size - FOOTER.size - size, size, body_crc)
    arrays = {
        section.name: body[at : at + length * np.dtype(section.dtype).itemsize].view(section.dtype)
        for section, at, length in places
    }
    blocks = BlockChecksums(arrays.pop("big_records"), arrays.pop("big_first_blocks"), arrays.pop("block_checksums"))
    tree = Tree(**arrays).validate(len(index) - 1, path)
    return tree, index.with_blocks(blocks, alignment)


def _read(file: File, offset: int, size: int, crc: int | None = None) -> npt.NDArray[np.uint8]:
    """Read size bytes at offset with the engine, in parallel, and compare their CRC-32 unless crc is None."""
    buffer = engine.take(size)
    status, _ = file.read_checked(offset, buffer, crc)
    if status in (errno.EBADMSG, errno.ENODATA):
        raise MetadataError(f"{file.name}: the trailer (the tree of names) is damaged; copy the file again")
    if status:
        raise file.failure(status, "the trailer")
    return buffer
