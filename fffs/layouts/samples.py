"""Samples: the files of a packed folder that have the same name up to the first dot, as in WebDataset."""

from __future__ import annotations

import functools
import operator
import os
import stat
from array import array
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np

from fffs.base.numbers import divide
from fffs.errors import RecordIndexError, UsageError
from fffs.layouts.view import TreeView
from fffs.tree.tree import ROOT, Int64Array, Tree

KEY: Final = "__key__"
TOGETHER: Final = 4 << 20  # bytes that an iteration reads at a time, at least one sample
MANY: Final = 4096  # samples


def split_name(path: bytes) -> tuple[bytes, bytes] | None:
    """Return the key of the sample that a file belongs to, with its folder, and the rest of the name without the dot.

    None: the name has no dot, or begins with one, so that the file belongs to no sample.
    """
    folder, slash, name = path.rpartition(b"/")
    stem, dot, ending = name.partition(b".")
    return (folder + slash + stem, ending) if stem and dot else None


class SampleTable:
    """Where the samples of a tree are. Immutable, 24 bytes for each sample; may be used from any thread.

    Samples are in the order of the folders, depth first, those of a folder before those of its subfolders. Symbolic
    links, and files without a dot in the name, belong to none.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        found = (array("q"), array("q"), array("q"))
        stack = [ROOT]
        while stack:
            stack += reversed(self._add_folder(stack.pop(), found))
        self._folders, self._firsts, self._stops = (np.array(column, np.int64) for column in found)
        self._prefix = functools.lru_cache(maxsize=1024)(tree.prefix)

    def _add_folder(self, folder: int, found: tuple[array[int], ...]) -> list[int]:
        """Add the samples in a folder, which are runs of its entries. Returns its subfolders."""
        tree, inner, last = self._tree, list[int](), None
        for entry, (name, node) in enumerate(tree.entries(folder), int(tree.ref[folder])):
            if tree.is_dir(node):
                inner.append(node)
                continue
            key = split_name(name) if tree.is_file(node) else None
            if key is None:
                continue
            if last == key[0]:
                found[2][-1] = entry + 1
            else:
                for column, value in zip(found, (folder, entry, entry + 1), strict=True):
                    column.append(value)
            last = key[0]
        return inner

    def __len__(self) -> int:
        return len(self._firsts)

    def files(self, number: int) -> tuple[str, list[str], list[int]]:
        """Return the key of a sample, and of each of its files the ending, in lower case, and the record.

        Raises:
            RecordIndexError: there is no such sample. UsageError: two endings differ only in case, or one is __key__.

        """
        if not -len(self) <= number < len(self):
            raise RecordIndexError(f"there is no sample {number}: there are {len(self)}")
        tree, key = self._tree, b""
        endings: list[str] = []
        records: list[int] = []
        for entry in range(int(self._firsts[number]), int(self._stops[number])):
            node, parts = int(tree.entry_nodes[entry]), split_name(tree.name(entry))
            if not tree.is_file(node) or parts is None or (key and parts[0] != key):
                continue
            key = parts[0]
            endings.append(os.fsdecode(parts[1]).lower())
            records.append(tree.record(node))
        key = self._prefix(int(self._folders[number])) + key
        if KEY in endings:
            raise UsageError(f"{os.fsdecode(key)!r}: the ending {KEY} is that of the key of a sample; rename the file")
        if len(set(endings)) < len(endings):
            raise UsageError(f"{os.fsdecode(key)!r}: two files of this sample have the same ending but for its case")
        return os.fsdecode(key), endings, records

    def sizes(self, lengths: Int64Array) -> Int64Array:
        """Return the bytes of each sample, at most: int64[samples]. lengths: of all records."""
        tree = self._tree
        nodes = tree.entry_nodes
        files = tree.kinds[nodes] == stat.S_IFREG
        ends = np.zeros(len(nodes) + 1, np.int64)
        np.cumsum(np.where(files, lengths[np.where(files, tree.ref[nodes], 0)], 0), out=ends[1:])
        sizes: Int64Array = ends[self._stops] - ends[self._firsts]
        return sizes


class SampleSequence:
    """The samples of a view, as a sequence of dictionaries. May be used from any thread."""

    def __init__(self, view: TreeView) -> None:
        """view: the caller closes it."""
        self._shown, self._samples = view, SampleTable(view.tree)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: Any) -> Any:
        """Return a sample by its number, or a list of them for a slice. Raises RecordIndexError, and as ``read``."""
        if isinstance(index, slice):
            return self.read(range(*index.indices(len(self))))
        return self.read([operator.index(index)])[0]

    def read(self, numbers: Iterable[int]) -> list[dict[str, Any]]:
        """Return samples, whose files are read in one batch: dictionaries of ``__key__`` and the bytes of each file.

        Raises:
            RecordIndexError: there is no such sample. UsageError: two files of a sample have the same ending but for
                its case, or one has the ending ``__key__``. Also as ``PackedFolder.read``.

        """
        wanted = [self._samples.files(number) for number in numbers]
        data, offsets = self._shown.store.read_joined([record for _, _, records in wanted for record in records])
        bounds, at = offsets.tolist(), 0
        found = []
        for key, endings, _ in wanted:
            sample: dict[str, Any] = {KEY: key}
            for ending in endings:
                sample[ending] = data[bounds[at] : bounds[at + 1]].tobytes()
                at += 1
            found.append(sample)
        return found

    __getitems__ = _getitems = read

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield all samples in order, which are read in batches of some MiB. Raises as ``read``."""
        store = self._shown.store
        for first, last in divide(self._samples.sizes(store.lengths(np.arange(store.n))), TOGETHER, MANY):
            yield from self.read(range(first, last))
