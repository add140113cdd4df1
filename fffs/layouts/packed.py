"""Packed folders: the tree is the last record."""

from __future__ import annotations

import stat
from dataclasses import dataclass, replace

import numpy as np

from fffs.errors import ChecksumError, FormatError, MetadataError, UnsupportedError
from fffs.formats.table import format_of
from fffs.records.index import RecordIndex
from fffs.records.policy import ReadPolicy
from fffs.records.source_file import SourceFile
from fffs.records.store import RecordStore
from fffs.tree import packed_pickle, trailer
from fffs.tree.tree import Tree


@dataclass(frozen=True)
class Packed:
    """A packed folder: its file (with the block checksums of the trailer, if any) and its tree."""

    file: SourceFile
    tree: Tree
    lossless: bool  # has a trailer: modes, times and links are those of the folder


def is_packed(file: SourceFile) -> bool:
    """Whether it is an FFRecord file whose last record begins with the magic bytes of a packed folder."""
    index, magic, form = file.index, packed_pickle.MAGIC, format_of(file.index)
    if form is None or not form.holds_trees or not len(index) or index.truncated:
        return False
    return index.length(len(index) - 1) >= len(magic) and _read(file, 0, len(magic)) == magic


def _read(file: SourceFile, start: int, size: int) -> bytes:
    """A few bytes of the last record, unverified."""
    return file.file.read_bytes(int(file.index.starts[-1]) + start, size)


def load(file: SourceFile, check_data: bool = True) -> Packed:
    """The tree of a packed folder: from the trailer, or for files that ffrecord wrote from the pickle.

    Raises:
        FormatError: it is no packed folder.
        MetadataError: the tree is damaged or refused.

    """
    index = file.index
    if not is_packed(file):
        problem = "the file was cut: its tree is missing" if index.truncated else "not a packed folder (it has no tree)"
        raise FormatError(f"{index.path}: {problem}")
    found = trailer.load(file.file, index)
    if found is not None:
        _refuse_foreign(index, found[0])
        return Packed(replace(file, index=found[1]), found[0], lossless=True)
    # Before memory is claimed for all of it: in a file that is mostly holes, a record can be of any size.
    if _read(file, len(packed_pickle.MAGIC), 1) != packed_pickle.PROTO:
        raise MetadataError(
            f"{index.path}: the tree of the packed folder is damaged: it does not begin as a pickle does"
        )
    store = RecordStore([file], ReadPolicy(check=check_data), closes_files=False)
    try:
        data = store.read_one(len(index) - 1)
    except ChecksumError as error:
        # The file's size is all that tells where the last record ends.
        raise MetadataError(
            f"{index.path}: the tree of the packed folder is damaged, or its end was cut off; copy the file again"
        ) from error
    except MemoryError as error:
        raise UnsupportedError(f"{index.path}: the tree of the packed folder is larger than memory") from error
    finally:
        store.close()
    tree = packed_pickle.decode(np.ascontiguousarray(data), len(index) - 1, index.path, file.file.mtime_ns)
    _refuse_foreign(index, tree)
    return Packed(file, tree, lossless=False)


def _refuse_foreign(index: RecordIndex, tree: Tree) -> None:
    """Who copies the records of several files into one has a tree at the end whose names lead to other files' records.

    Numbers of records are counted from the file's first one, so the highest of a tree tells how many it is for.
    """
    files = tree.kinds == stat.S_IFREG
    named = int((tree.ref.astype(np.int64) * files + files).max(initial=0))
    if named != len(index) - 1:
        raise MetadataError(
            f"{index.path}: its tree is for {named} records, and {len(index) - 1} are in front of it: it is of another "
            "file; pack the folder again"
        )
