"""TreeBuilder: collects names in any order and lays them out as a Tree."""

from __future__ import annotations

import stat
from array import array
from typing import Any

import numpy as np
import numpy.typing as npt

from fffs.errors import MetadataError, UnsupportedError
from fffs.native import ffi, lib
from fffs.tree import Tree

DIRECTORY = stat.S_IFDIR | 0o755
FILE = stat.S_IFREG | 0o644
SYMLINK = stat.S_IFLNK | 0o777

Array = npt.NDArray[Any]


class TreeBuilder:
    """Collects directories, files, links and symbolic links. Node numbers it gives out are its own, not the Tree's.

    Not thread-safe. The root (node 0) is there from the start.
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
        """Give a node that is already there a (further) name."""
        self._parents.append(parent)
        self._nodes.append(node)
        self._names.append(name)

    def add_directory(self, parent: int, name: bytes, mode: int = DIRECTORY, mtime: int = 0) -> int:
        """A directory; returns its node."""
        return self._add(parent, name, mode, mtime, 0)

    def add_file(self, parent: int, name: bytes, record: int, mode: int = FILE, mtime: int = 0) -> int:
        """A file whose bytes are a record; returns its node."""
        return self._add(parent, name, mode, mtime, record)

    def add_symlink(self, parent: int, name: bytes, target: bytes, mode: int = SYMLINK, mtime: int = 0) -> int:
        """A symbolic link; returns its node."""
        node = self._add(parent, name, mode, mtime, self._targets_size, len(target))
        self._targets.append(target)
        self._targets_size += len(target)
        return node

    def build(self, records: int, source: str) -> Tree:
        """The Tree of what was added, validated.

        Raises:
            MetadataError: two entries of a directory have the same name, a name is no name, a record is not there.

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
    """The Tree of entries and nodes in any order.

    Per entry: ``parents`` and ``nodes`` (uint32), and ``name_offsets`` (one more) into ``names``. Per node: ``mode``,
    ``mtime``, ``ref`` (file: its record; symlink: where its target begins), ``count`` (symlink: its target's length).
    Node 0 is the root.

    Raises:
        MetadataError: they do not form a tree.
        UnsupportedError: more names than 32 bits can count.

    """
    n_entries, n_nodes = len(parents), len(mode)
    if max(n_entries, n_nodes, int(name_offsets[-1]), len(targets)) >= 2**32 - 1:
        raise UnsupportedError(
            f"{source}: more names than a tree can hold (4 GiB of names); split it into several packs"
        )
    is_directory = (mode & 0o170000) == stat.S_IFDIR
    rank = np.empty(n_nodes, np.uint32)
    entry_nodes = np.empty(n_entries, np.uint32)
    out_offsets = np.empty(n_entries + 1, np.uint32)
    out_names = np.empty(len(names), np.uint8)
    arrays = (
        np.ascontiguousarray(parents, np.uint32),
        np.ascontiguousarray(nodes, np.uint32),
        np.ascontiguousarray(name_offsets, np.uint32),
        np.ascontiguousarray(names, np.uint8),
        np.ascontiguousarray(is_directory, np.uint8),
    )
    status = lib.fffs_tree_order(
        n_entries, n_nodes, *(_pointer(a) for a in (*arrays, rank, entry_nodes, out_offsets, out_names))
    )
    if status != 0:
        raise MetadataError(f"{source}: the names do not form a tree; the file is damaged")

    # Link counts as stat(2) has them: names of a file, two and one per subdirectory of a directory.
    nlink = np.bincount(entry_nodes, minlength=n_nodes)
    subdirectories = is_directory[arrays[1]]
    parents_of_directories = rank[arrays[0][subdirectories]]
    directories = _scatter(is_directory, rank)
    nlink[directories] = 2
    nlink += np.bincount(parents_of_directories, minlength=n_nodes)
    parent = np.zeros(n_nodes, np.uint32)
    parent[rank[arrays[1][subdirectories]]] = parents_of_directories

    # Directories share out the entries in the order of their numbers.
    counts = _scatter(count, rank).astype(np.uint32)
    per_directory = np.bincount(rank[arrays[0]], minlength=n_nodes)[directories]
    counts[directories] = per_directory
    refs = _scatter(ref, rank)
    if len(refs) and (int(refs.min()) < 0 or int(refs.max()) >= 2**32):
        raise MetadataError(f"{source}: the tree is damaged: a file names a record that is not there")
    refs[directories] = np.cumsum(per_directory) - per_directory
    return Tree(
        mtime=_scatter(mtime, rank).astype(np.int64),
        nlink=nlink.astype(np.uint32),
        ref=refs.astype(np.uint32),
        count=counts,
        parent=parent,
        mode=_scatter(mode, rank).astype(np.uint16),
        name_offsets=out_offsets,
        entry_nodes=entry_nodes,
        names=out_names,
        targets=np.ascontiguousarray(targets, np.uint8),
    ).validate(records, source)


def _scatter(values: Array, rank: npt.NDArray[np.uint32]) -> Array:
    """Per-node values in the tree's order."""
    out = np.empty_like(values)
    out[rank] = values
    return out


def _pointer(array: Array) -> object:
    """The address of an array's data as the C type of its items."""
    kinds = {1: "uint8_t *", 4: "uint32_t *"}
    return ffi.cast(kinds[array.dtype.itemsize], array.ctypes.data)
