"""TreeBuilder: collects names in any order and lays them out as a Tree."""

from __future__ import annotations

import errno
import stat
from array import array
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fffs.errors import MetadataError, UnsupportedError
from fffs.native import ffi, lib
from fffs.tree.tree import Tree

DIRECTORY = stat.S_IFDIR | 0o755
FILE = stat.S_IFREG | 0o644
SYMLINK = stat.S_IFLNK | 0o777

MORE_NAMES = "more names than a tree can hold (4 GiB of names); split it into several packs"

Array = npt.NDArray[Any]


class TreeBuilder:
    """Collects directories, files, links and symbolic links. The Tree numbers the nodes differently than the builder.

    The root is node 0 and exists from the start. Not thread-safe.
    """

    def __init__(self, mode: int = DIRECTORY, mtime: int = 0) -> None:
        self._parents = array("I")
        self._nodes = array("I")
        self._names: list[bytes] = []
        self._modes = array("H", [mode])
        self._mtimes = array("q", [mtime])
        self._refs = array("q", [0])
        self._counts = array("I", [0])
        self._targets: list[bytes] = []
        self._targets_size = 0

    def _add(self, parent: int, name: bytes, mode: int, mtime: int, ref: int, count: int = 0) -> int:
        node = len(self._modes)
        self._modes.append(mode)
        self._mtimes.append(mtime)
        self._refs.append(ref)
        self._counts.append(count)
        self.add_link(parent, name, node)
        return node

    def add_link(self, parent: int, name: bytes, node: int) -> None:
        """Add a name, or a further name, for an existing node."""
        self._parents.append(parent)
        self._nodes.append(node)
        self._names.append(name)

    def add_directory(self, parent: int, name: bytes, mode: int = DIRECTORY, mtime: int = 0) -> int:
        """Add a directory and return its node. mtime: nanoseconds since 1970."""
        return self._add(parent, name, mode, mtime, 0)

    def add_file(self, parent: int, name: bytes, record: int, mode: int = FILE, mtime: int = 0) -> int:
        """Add a file, whose bytes are those of a record, and return its node."""
        return self._add(parent, name, mode, mtime, record)

    def add_symlink(self, parent: int, name: bytes, target: bytes, mode: int = SYMLINK, mtime: int = 0) -> int:
        """Add a symbolic link and return its node."""
        node = self._add(parent, name, mode, mtime, self._targets_size, len(target))
        self._targets.append(target)
        self._targets_size += len(target)
        return node

    def build(self, records: int, source: str) -> Tree:
        """Return the validated Tree. records: the number of records that files may refer to. source: for messages.

        Raises:
            MetadataError: a name is invalid or twice in a directory, or a record does not exist.
            MemoryError, UnsupportedError.

        """
        lengths = np.fromiter(map(len, self._names), np.int64, len(self._names))
        return build_tree(
            parents=np.frombuffer(self._parents, np.uint32) if self._parents else np.empty(0, np.uint32),
            nodes=np.frombuffer(self._nodes, np.uint32) if self._nodes else np.empty(0, np.uint32),
            name_offsets=np.concatenate([[0], np.cumsum(lengths)]),
            names=np.frombuffer(b"".join(self._names), np.uint8),
            mode=np.frombuffer(self._modes, np.uint16),
            mtime=np.frombuffer(self._mtimes, np.int64),
            ref=np.frombuffer(self._refs, np.int64),
            count=np.frombuffer(self._counts, np.uint32),
            targets=np.frombuffer(b"".join(self._targets), np.uint8),
            records=records,
            source=source,
        )


def build_tree(
    *,
    parents: Array,
    nodes: Array,
    name_offsets: Array,
    names: Array,
    mode: Array,
    mtime: Array,
    ref: Array,
    count: Array,
    targets: Array,
    records: int,
    source: str,
) -> Tree:
    """Return the validated Tree of entries and nodes, given in any order.

    Per entry: ``parents`` and ``nodes`` (uint32), and ``name_offsets`` (one more) into ``names``. Per node: ``mode``,
    ``mtime``, ``ref`` (file: its record; symlink: offset of its target in ``targets``), ``count`` (symlink: length of
    its target). Node 0 is the root.

    Raises:
        MemoryError: not enough memory.
        MetadataError: the arrays do not form a tree.
        UnsupportedError: there are 2**32 - 1 or more nodes, entries, bytes of names or bytes of targets.

    """
    if max(len(parents), len(mode), int(name_offsets[-1]), len(targets)) >= 2**32 - 1:
        raise UnsupportedError(f"{source}: {MORE_NAMES}")
    is_directory = (mode & 0o170000) == stat.S_IFDIR
    order = _find_order(parents, nodes, name_offsets, names, is_directory, source)
    rank, directories = order.rank, _scatter(is_directory, order.rank)
    inner = is_directory[nodes]
    subdirectories, their_parents = rank[nodes[inner]], rank[parents[inner]]
    parent = np.zeros(len(mode), np.uint32)
    parent[subdirectories] = their_parents

    refs, counts = _scatter(ref, rank), _scatter(count, rank).astype(np.uint32)
    if int(refs.min()) < 0 or int(refs.max()) >= 2**32:
        raise MetadataError(f"{source}: the tree is damaged: a file refers to a record that does not exist")
    # Each directory gets a range of the entries, in the order of the directories' numbers.
    per_directory = np.bincount(rank[parents], minlength=len(mode))[directories]
    refs[directories], counts[directories] = np.cumsum(per_directory) - per_directory, per_directory
    return Tree(
        mtime=_scatter(mtime, rank).astype(np.int64),
        nlink=_count_links(order.entry_nodes, directories, their_parents),
        ref=refs.astype(np.uint32),
        count=counts,
        parent=parent,
        mode=_scatter(mode, rank).astype(np.uint16),
        name_offsets=order.name_offsets,
        entry_nodes=order.entry_nodes,
        names=order.names,
        targets=np.ascontiguousarray(targets, np.uint8),
    ).validate(records, source)


class _Order(NamedTuple):
    """The entries and nodes in the order of the tree. All arrays are uint32 except for the names."""

    rank: Array  # per node: its number in the tree
    entry_nodes: Array  # per entry of the tree: the number of its node
    name_offsets: Array
    names: Array


def _find_order(
    parents: Array, nodes: Array, name_offsets: Array, names: Array, is_directory: Array, source: str
) -> _Order:
    n_entries, n_nodes = len(parents), len(is_directory)
    given = (
        np.ascontiguousarray(parents, np.uint32),
        np.ascontiguousarray(nodes, np.uint32),
        np.ascontiguousarray(name_offsets, np.uint32),
        np.ascontiguousarray(names, np.uint8),
        np.ascontiguousarray(is_directory, np.uint8),
    )
    order = _Order(
        np.empty(n_nodes, np.uint32),
        np.empty(n_entries, np.uint32),
        np.empty(n_entries + 1, np.uint32),
        np.empty(len(names), np.uint8),
    )
    status = lib.fffs_tree_order(n_entries, n_nodes, *(_pointer(array) for array in (*given, *order)))
    if status == -errno.ENOMEM:
        raise MemoryError("not enough memory to lay out a tree")
    if status != 0:
        raise MetadataError(f"{source}: the names do not form a tree; the file is damaged")
    return order


def _count_links(entry_nodes: Array, directories: Array, parents: Array) -> Array:
    """Return the link count of each node, as in stat(2): for a file its names, for a directory 2 + its subdirectories.
    parents: of each directory except the root.
    """
    nlink = np.bincount(entry_nodes, minlength=len(directories)).astype(np.uint32)
    nlink[directories] = 2
    np.add.at(nlink, parents, 1)
    return nlink


def _scatter(values: Array, rank: npt.NDArray[np.uint32]) -> Array:
    """Return per-node values in the order of the tree."""
    out = np.empty_like(values)
    out[rank] = values
    return out


def _pointer(array: Array) -> object:
    """Return a pointer to the data of an array, of the C type of its items."""
    kinds = {1: "uint8_t *", 4: "uint32_t *"}
    return ffi.cast(kinds[array.dtype.itemsize], array.ctypes.data)
