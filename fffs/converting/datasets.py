"""Reading granular data sets as records: their blobs, from Bags or from the tree of a packed folder.

Blobs are never decoded, so conversion does not depend on the meaning of types.
"""

from __future__ import annotations

import contextlib
import itertools
from array import array
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from fffs.base.withblock import closed_on_error
from fffs.converting.records import RecordSource, StoredRecords
from fffs.errors import MetadataError, UsageError
from fffs.granular import spec as specs
from fffs.granular.columns import Blobs
from fffs.granular.shards import Shard, data_set_folders, find_shards, open_shards
from fffs.granular.spec import Type
from fffs.layouts import refs_table
from fffs.layouts.plain import digits_for, number_names
from fffs.layouts.view import TreeView
from fffs.records.index import Int64Array
from fffs.records.source_file import SourceFile
from fffs.records.store import RecordStore
from fffs.tree.tree import ROOT

SCALAR: Final = -1


@dataclass
class BlobRows:
    """The rows of a data set.

    ``counts`` int64[rows, keys]: the number of blobs of each sequence, or SCALAR for a single blob. ``blobs``: the
    blobs of all rows, row by row, and key by key in each row. ``mtime``: last modification, nanoseconds since 1970.
    """

    shown: str
    spec: dict[str, str]
    counts: Int64Array
    blobs: RecordSource
    mtime: int

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def firsts(self) -> Int64Array:
        """int64[rows + 1]: the number of each row's first blob."""
        firsts = np.zeros(len(self) + 1, np.int64)
        np.cumsum(np.where(self.counts == SCALAR, 1, self.counts).sum(axis=1), out=firsts[1:])
        return firsts

    @property
    def sizes(self) -> Int64Array:
        """int64[rows]: the bytes of each row."""
        ends = np.concatenate([[0], np.cumsum(self.blobs.lengths)])
        return np.diff(ends[self.firsts])

    @property
    def total_bytes(self) -> int:
        """The bytes of all blobs."""
        return int(self.blobs.lengths.sum())

    def refuse_layout(self, layout: str, target: str) -> None:
        """Raise UsageError if the types have another meaning in that layout: ``type[]`` is a sequence in v1, but can be
        the name of any type in v3, which has no sequences.
        """
        for key, kind, column in zip(self.spec, self.spec.values(), self.counts.T, strict=True):
            if kind.endswith("[]") and layout == "v1" and (column == SCALAR).any():
                raise UsageError(
                    f"{target}: {key!r} of {self.shown} has one blob per row, but in layout v1 the type {kind!r} is a "
                    "sequence; convert to a packed folder, or give the key another type"
                )

    def rows(self) -> Generator[Blobs, None, None]:
        """Yield the blobs of each row. Memory is bounded, except for the size of one row. The caller closes this."""
        with contextlib.closing(self._each()) as blobs:
            for row in self.counts:
                counts = row.tolist()
                yield [next(blobs) if count == SCALAR else [next(blobs) for _ in range(count)] for count in counts]

    def _each(self) -> Generator[memoryview, None, None]:
        with contextlib.closing(self.blobs.batches(())) as batches:
            for batch in batches:
                for record in batch:
                    yield memoryview(record) if len(record) else memoryview(b"")
                del batch, record

    def close(self) -> None:
        """Close the files."""
        self.blobs.close()


# ---------------------------------------------------------------- from a folder of Bags


def load_folder(path: str) -> BlobRows:
    """Load a data set of any layout, which may be in shards.

    Raises:
        SourceNotFoundError, MetadataError, ReadError: the data set is missing, damaged, or cannot be read.

    """
    folders = data_set_folders(path) or find_shards(path)  # raises if there are no shards
    spec = specs.load_common(folders)
    sources, shards = open_shards(path, folders, spec)
    store = RecordStore(sources)
    with closed_on_error((store,)):
        mtime = max(source.file.mtime_ns for source in sources)
        firsts = [0, *itertools.accumulate(shard.files for shard in shards)][:-1]
        parts = [_places(sources[k], shard, spec) for k, shard in zip(firsts, shards, strict=True)]
        numbers = np.concatenate([part[0] for part in parts])
        counts = np.concatenate([part[1] for part in parts])
        return BlobRows(path, spec, counts, StoredRecords(store, path, numbers), mtime)


def is_column(path: str) -> bool:
    """Return whether each row of a data set is one blob, so that rows are records. Raises as ``load_folder``."""
    folders = data_set_folders(path) or find_shards(path)
    spec = specs.load_common(folders)
    if len(spec) != 1:
        return False
    sources, shards = open_shards(path, folders, spec)
    for source in sources:
        source.close()
    (kind,) = spec.values()
    return not Type.parse(kind).sequence or all(shard.refs is None or shard.rows == 0 for shard in shards)


def column_files(path: str) -> list[str]:
    """Return the Bags whose records are the rows of a data set, in order.

    Raises UsageError: there are none, because rows have several blobs, or other records lie between. Also as
    ``load_folder``.
    """
    found: list[str] = []
    if is_column(path):
        with contextlib.closing(load_folder(path)) as data:
            assert isinstance(data.blobs, StoredRecords)
            store, numbers = data.blobs.store, data.blobs.numbers
            for k, file in enumerate(store.files):
                own = store.first_record(k) + np.arange(len(file.index))
                if len(own) and np.array_equal(numbers[: len(own)], own):
                    found.append(file.index.path)
                    numbers = numbers[len(own) :]
            if not len(numbers):
                return found
    raise UsageError(
        f"{path}: a data set whose rows are not the records of its Bags is converted by one process only; omit "
        "--executor and --restart"
    )


def _places(file: SourceFile, shard: Shard, spec: dict[str, str]) -> tuple[Int64Array, Int64Array]:
    """Return the record numbers of the blobs of a shard's rows, and the counts per key. file: the shard's first."""
    sequences = [shard.refs is not None and Type.parse(kind).sequence for kind in spec.values()]
    table = refs_table.load(file, shard, sequences)
    firsts, lengths = (np.stack(columns, axis=1) for columns in (table.first, table.count))
    total, blobs = int(lengths.sum()), sum(count for _, count in shard.columns)
    if total > blobs:  # rows that share blobs could make a result of any size from a small file
        raise MetadataError(f"{file.index.path}: its rows share blobs: they have {total} together, of only {blobs}")
    each = lengths.reshape(-1)
    numbers = np.repeat(firsts.reshape(-1) - (np.cumsum(each) - each), each) + np.arange(total)
    return numbers, np.where(sequences, lengths, SCALAR)


# ---------------------------------------------------------------- from a packed folder


def load_packed(source: TreeView, shown: str) -> BlobRows:
    """Load the data set whose tree a packed folder holds. Closing the result closes the source.

    Raises:
        MetadataError: the tree is not that of a data set.

    """
    tree = source.tree
    entries = list(tree.entries(ROOT))
    named = dict(entries)
    place = named.pop(specs.NAME.encode(), None)
    if place is None or not tree.is_file(place) or source.store.length(tree.record(place)) > specs.LARGEST:
        raise MetadataError(f"{shown}: not the tree of a data set: it has no {specs.NAME} at its top")
    spec = specs.parse(source.store.read_one(tree.record(place)).tobytes(), f"{shown}: {specs.NAME}")
    keys = [key.encode() for key in spec]
    found, counts = array("q"), array("q")
    for row, name in enumerate(_numbered(tree.entries(ROOT), len(named), f"{shown}: its rows")):
        values = dict(tree.entries(name)) if tree.is_dir(name) else {}
        if list(values) != keys:
            raise MetadataError(f"{shown}: not the tree of a data set: the keys of row {row} differ from {specs.NAME}")
        for key, kind in spec.items():
            node = values[key.encode()]
            if tree.is_file(node):
                found.append(tree.record(node))
                counts.append(SCALAR)
            elif tree.is_dir(node) and kind.endswith("[]"):
                items = list(_numbered(tree.entries(node), int(tree.count[node]), f"{shown}: {key!r} of row {row}"))
                if not all(tree.is_file(item) for item in items):
                    raise MetadataError(f"{shown}: not the tree of a data set: {key!r} of row {row} has non-file items")
                found.extend(tree.record(item) for item in items)
                counts.append(len(items))
            else:
                raise MetadataError(f"{shown}: not the tree of a data set: {key!r} of row {row} is not of type {kind}")
    blobs = StoredRecords(source.store, shown, np.array(found, np.int64))
    return BlobRows(shown, spec, np.array(counts, np.int64).reshape(len(named), len(spec)), blobs, 0)


def _numbered(entries: Iterator[tuple[bytes, int]], count: int, what: str) -> Iterator[int]:
    """Yield the nodes of ``count`` entries, whose names must be 000000, 000001, …; further entries are ignored."""
    for expected, (name, node) in zip(number_names(count), entries, strict=False):
        if name != expected:
            first, last = (f"{k:0{digits_for(count)}}" for k in (0, count - 1))
            raise MetadataError(f"{what} are not numbered from {first} to {last}")
        yield node
