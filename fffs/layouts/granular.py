"""granular's data sets as trees: a folder for each datapoint, with a file for each key, or a folder for a sequence.

``DataSetFiles`` opens a data set. ``build`` makes its tree, in which each file is a blob as it is stored.
"""

from __future__ import annotations

import bisect
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fffs.base.withblock import closed_on_error
from fffs.errors import UnsupportedError
from fffs.granular import spec as specs
from fffs.granular.shards import Shard, data_set_folders, find_shards, open_shards
from fffs.granular.spec import Type
from fffs.layouts import refs_table
from fffs.layouts.escape import file_name
from fffs.layouts.plain import digits_for, numbered
from fffs.layouts.refs_table import RefsTable
from fffs.native.checksums import CHECK_NONE
from fffs.objects.locations import open_file
from fffs.records.index import RecordIndex
from fffs.records.source_file import SourceFile
from fffs.tree.builder import DIRECTORY, FILE, build_tree
from fffs.tree.tree import Tree

MOST_NODES = 1 << 22
"""The most nodes of a tree. The tree is kept in memory, and needs about 700 MiB while it is made."""
MOST_NAMES = 1 << 28  # bytes

_ENDINGS = {
    **dict.fromkeys(("jpg", "jpeg"), b".jpg"),
    **dict.fromkeys(("msgpack", "tree", "array"), b".msgpack"),
    "png": b".png",
    "utf8": b".txt",
    "mp4": b".mp4",
    "webm": b".webm",
}


@dataclass(frozen=True)
class KeyLayout:
    """A key of a data set, its type, and the ending of its files. The files of a sequence are in a folder."""

    name: str
    type: Type
    ending: bytes

    @property
    def file(self) -> bytes:
        """The name of the key's file, or of a sequence's folder, in the folder of a row."""
        return file_name(self.name.encode(), b"" if self.type.sequence else self.ending)


def stored_ending(kind: Type) -> bytes:
    """Return the file ending for undecoded blobs of a type."""
    raw = kind.name == "array" and kind.arguments
    return b".bin" if raw else _ENDINGS.get(kind.name, b".bin")


class DataSetFiles:
    """The open files of a data set. The RecordStore that the caller makes of ``files`` owns and closes them.

    ``spec_record`` is the number of the record that holds spec.json.
    """

    def __init__(self, path: str, check_data: bool = True) -> None:
        """check_data: as in ``open_bag``.

        Raises:
            MetadataError, SourceNotFoundError, ReadError: the data set is damaged, or cannot be read.

        """
        self.path = path
        folders = data_set_folders(path) or find_shards(path)  # raises if there are no shards
        spec = specs.load_common(folders)
        self.files, self.shards = open_shards(path, folders, spec, check_data)
        self._first_rows = [0, *itertools.accumulate(shard.rows for shard in self.shards)]
        self._refs_files = [0, *itertools.accumulate(shard.files for shard in self.shards)][:-1]
        self.n = self._first_rows[-1]
        sequences = self.shards[0].layout != "v3"
        self.keys = [
            KeyLayout(name, kind, stored_ending(kind))
            for name, text in spec.items()
            for kind in (Type.parse(text, sequences),)
        ]
        self.spec_record = sum(len(file.index) for file in self.files)
        with closed_on_error(self.files):
            self.files.append(_whole(os.path.join(folders[0], specs.NAME)))
        self.mtime = max(file.file.mtime_ns for file in self.files)

    def place(self, number: int) -> tuple[Shard, int]:
        """Return the shard of a row, and the row's number in it."""
        k = bisect.bisect_right(self._first_rows, number) - 1
        return self.shards[k], number - self._first_rows[k]

    def refs(self) -> list[RefsTable]:
        """Load the blob numbers of all rows, per shard. Raises as ``refs_table.load``."""
        sequences = [key.type.sequence for key in self.keys]
        files = [self.files[k] for k in self._refs_files]
        pairs = zip(files, self.shards, strict=True)
        return [refs_table.load(file, shard, sequences) for file, shard in pairs]

    def most_nodes(self) -> int:
        """Return an upper bound of the nodes of its tree, from the sizes of its Bags alone."""
        items = sum(
            count
            for shard in self.shards
            for key, (_, count) in zip(self.keys, shard.columns, strict=True)
            if key.type.sequence
        )
        return 2 + self.n * (1 + len(self.keys)) + items

    def fits_a_tree(self) -> bool:
        """Return whether its tree stays below ``MOST_NODES`` and ``MOST_NAMES``."""
        row = digits_for(self.n) + sum(len(key.file) for key in self.keys)
        return self.most_nodes() <= MOST_NODES and self.n * row <= MOST_NAMES


def _whole(path: str) -> SourceFile:
    """Open a file as one record."""
    file = open_file(path)
    starts, ends = np.zeros(1, np.int64), np.full(1, file.size, np.int64)
    index = RecordIndex(file.name, starts, ends, None, CHECK_NONE, file.size, format="JSON").validate()
    return SourceFile(file, index)


# ---------------------------------------------------------------- the tree

Int64Array = npt.NDArray[np.int64]


class _Parts:
    """Collects entries and nodes of a tree as arrays. Node 0 is the root."""

    def __init__(self) -> None:
        self.nodes = 1
        self._parents: list[Any] = []
        self._names: list[npt.NDArray[np.uint8]] = []
        self._lengths: list[Int64Array] = []
        self._modes = [np.full(1, DIRECTORY, np.uint16)]
        self._refs: list[Int64Array] = [np.zeros(1, np.int64)]

    def add(self, parents: Any, names: npt.NDArray[np.uint8], refs: Int64Array | None) -> Int64Array:
        """Add n files with records ``refs``, or n folders (None). names: uint8[n, width]. Returns their nodes."""
        n, width = names.shape
        self._parents.append(np.broadcast_to(np.asarray(parents, np.uint32), n))
        self._names.append(names.reshape(-1))
        self._lengths.append(np.full(n, width, np.int64))
        self._modes.append(np.full(n, DIRECTORY if refs is None else FILE, np.uint16))
        self._refs.append(np.zeros(n, np.int64) if refs is None else refs)
        self.nodes += n
        return np.arange(self.nodes - n, self.nodes, dtype=np.int64)

    def build(self, records: int, mtime: int, source: str) -> Tree:
        lengths = np.concatenate([np.zeros(1, np.int64), *self._lengths])
        return build_tree(
            parents=np.concatenate(self._parents),
            nodes=np.arange(1, self.nodes, dtype=np.uint32),
            name_offsets=np.cumsum(lengths),
            names=np.concatenate(self._names),
            mode=np.concatenate(self._modes),
            mtime=np.full(self.nodes, mtime, np.int64),
            ref=np.concatenate(self._refs),
            count=np.zeros(self.nodes, np.uint32),
            targets=np.empty(0, np.uint8),
            records=records,
            source=source,
        )


def build(data: DataSetFiles, keys: Sequence[KeyLayout] = ()) -> Tree:
    """Build the tree of a data set. keys: with the endings of their files; by default those of undecoded blobs.

    Raises:
        MetadataError, RecordError: refs.bag is damaged.
        UnsupportedError: the data set has too many files for a tree.
        ReadError: refs.bag cannot be read.

    """
    if not data.fits_a_tree():
        raise UnsupportedError(
            f"{data.path}: {data.n} datapoints with {len(data.keys)} keys are more files than one tree can hold; mount "
            "the data set, or open its shards one by one"
        )
    parts = _Parts()
    parts.add(0, _repeated(specs.NAME.encode(), 1), np.array([data.spec_record]))
    rows = parts.add(0, numbered(np.arange(data.n), digits_for(data.n), b""), None)
    tables = data.refs()
    for position, key in enumerate(keys or data.keys):
        first = np.concatenate([table.first[position] for table in tables])
        if not key.type.sequence:
            parts.add(rows, _repeated(key.file, data.n), first)
            continue
        counts = np.concatenate([table.count[position] for table in tables])
        folders = parts.add(rows, _repeated(key.file, data.n), None)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        names = numbered(within, digits_for(int(counts.max(initial=0))), key.ending)
        parts.add(np.repeat(folders, counts), names, np.repeat(first, counts) + within)
    return parts.build(data.spec_record + 1, data.mtime, data.path)


def _repeated(name: bytes, n: int) -> npt.NDArray[np.uint8]:
    return np.broadcast_to(np.frombuffer(name, np.uint8), (n, len(name)))
