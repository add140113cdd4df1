"""Packed folders: loads the tree from the last record."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fffs.errors import ChecksumError, FormatError, MetadataError, UnsupportedError
from fffs.files.holes import validate_written
from fffs.files.reopened_file import OPEN
from fffs.formats.sources import open_files
from fffs.formats.table import format_of
from fffs.records.index import RecordIndex
from fffs.records.source_file import SourceFile
from fffs.records.store import RecordStore
from fffs.tree import packed_pickle, trailer
from fffs.tree.tree import Tree


@dataclass(frozen=True)
class Packed:
    """A packed folder: its file (with the block checksums of the trailer, if any) and its tree."""

    file: SourceFile
    tree: Tree
    lossless: bool  # has a trailer, with the modes, times and links of the folder


def is_packed(file: SourceFile) -> bool:
    """Return whether this is an FFRecord file whose last record is the tree of a packed folder: it ends with a trailer,
    or begins with the magic bytes of a pickle.
    """
    index, magic, form = file.index, packed_pickle.MAGIC, format_of(file.index)
    if form is None or not form.holds_trees or not len(index) or index.truncated:
        return False
    # First, as it needs no other bytes than loading the trailer does, each of which may be a request to a store.
    if trailer.has_footer(file.file, index):
        return True
    return index.length(len(index) - 1) >= len(magic) and _read(file, 0, len(magic)) == magic


def _read(file: SourceFile, start: int, size: int) -> bytes:
    """Read a few bytes of the last record, without verifying them."""
    return file.file.read_bytes(int(file.index.starts[-1]) + start, size)


def load(file: SourceFile) -> Packed:
    """Load the tree of a packed folder, from the trailer, or from the pickle if ffrecord wrote the file.

    Raises:
        FormatError: the file is not a packed folder.
        MetadataError: the tree is damaged or invalid.

    """
    index = file.index
    if not is_packed(file):
        problem = "the tree is missing (file truncated)" if index.truncated else "not a packed folder (it has no tree)"
        raise FormatError(f"{index.path}: {problem}")
    found = trailer.load(file.file, index)
    if found is not None:
        _refuse_foreign(found[1], found[0])
        return Packed(replace(file, index=found[1]), found[0], lossless=True)
    # Before the whole record is read, which can have any size.
    if _read(file, len(packed_pickle.MAGIC), 1) != packed_pickle.PROTO:
        raise MetadataError(f"{index.path}: the tree of the packed folder is damaged: it does not begin like a pickle")
    validate_written(file.file, int(index.starts[-1]), index.length(len(index) - 1), "its tree")
    store = RecordStore([file], closes_files=False)
    try:
        data = store.read_one(len(index) - 1)
    except ChecksumError as error:
        # The last record ends where the file ends, so a truncated tree shows as a wrong checksum.
        raise MetadataError(
            f"{index.path}: the tree of the packed folder is damaged or truncated; copy the file again"
        ) from error
    except MemoryError as error:
        raise UnsupportedError(f"{index.path}: not enough memory for the tree of the packed folder") from error
    finally:
        store.close()
    tree = packed_pickle.decode(np.ascontiguousarray(data), len(index) - 1, index.path, file.file.mtime_ns)
    _refuse_foreign(index, tree)
    return Packed(file, tree, lossless=False)


def load_trees(paths: Sequence[str]) -> tuple[list[Tree], list[int]]:
    """Return the trees of packed folders, and their numbers of records. Few files are open at a time.

    Raises as ``open_files`` and ``load``.
    """
    trees, counts = list[Tree](), list[int]()
    for begin in range(0, len(paths), OPEN):
        files = open_files(list(paths[begin : begin + OPEN]))
        with contextlib.closing(RecordStore(files)):
            trees += [load(file).tree for file in files]
            counts += [len(file.index) for file in files]
    return trees, counts


def _refuse_foreign(index: RecordIndex, tree: Tree) -> None:
    """Raise MetadataError for a tree of another file: copying the records of several packs into one file leaves the
    last pack's tree at the end, and its record numbers, which count from the file's first record, are then wrong. The
    highest number in a tree tells how many records it is for. In an aligned pack, a padding record follows that one.
    """
    files = tree.kinds == stat.S_IFREG
    named = int((tree.ref.astype(np.int64) * files + files).max(initial=0))
    named += index.alignment > 0
    if named != len(index) - 1:
        raise MetadataError(
            f"{index.path}: its tree is for {named} records, but {len(index) - 1} precede it, so it belongs to another "
            "file; pack the folder again"
        )
