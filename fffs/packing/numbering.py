"""Makes the tree of listed names, and numbers the records of its files."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fffs.base.numbers import unique
from fffs.errors import MetadataError, UnsupportedError
from fffs.native import ffi, lib
from fffs.tree.builder import build_tree
from fffs.tree.tree import Tree, UInt8Array, UInt32Array

PIECE = 1 << 16  # targets of links that are moved at a time

Array = npt.NDArray[Any]


@contextlib.contextmanager
def packable(shown: str) -> Iterator[None]:
    """Raise UnsupportedError if the block finds that names form no tree. shown: what is packed, for the message."""
    try:
        yield
    except MetadataError as error:
        raise UnsupportedError(f"{shown}: cannot be packed: {error}") from error


class Named(NamedTuple):
    """Names in folders, in any order. The root is node 0, and entry e is node e + 1.

    Per entry: ``parents`` (the node of its folder), ``name_offsets`` (one more) into ``names``, ``owners`` (the entry
    whose node it has: itself, or another for a further name of a file) and ``modes`` (0: left out). ``root``: the mode
    of the root.
    """

    root: int
    parents: UInt32Array
    owners: UInt32Array
    modes: Array
    name_offsets: UInt32Array
    names: UInt8Array
    targets: UInt8Array


def arrange(
    named: Named,
    mtimes: Callable[[UInt32Array], npt.NDArray[np.int64]],
    spans: Callable[[UInt32Array], tuple[Array, Array]],
    shown: str,
) -> tuple[Tree, UInt32Array]:
    """Return the tree, and of the file that becomes record k, its entry. Records are numbered, and the targets of links
    sorted, in the order of the nodes, depth first.

    mtimes: returns the times of the root and of entries. spans: returns where the targets of symbolic links begin, and
    their lengths. shown: what is packed, for messages.

    Raises UnsupportedError: the names form no tree.
    """
    tree, files = _build(named, mtimes, spans, shown)
    return _number_records(tree, files)


def _build(
    named: Named,
    mtimes: Callable[[UInt32Array], npt.NDArray[np.int64]],
    spans: Callable[[UInt32Array], tuple[Array, Array]],
    shown: str,
) -> tuple[Tree, UInt32Array]:
    """Return a tree whose files refer to rows of the second result, their entries."""
    kept, owners = named.modes != 0, named.owners
    own = np.flatnonzero(kept & (owners == np.arange(len(owners), dtype=np.uint32))).astype(np.uint32)
    numbers = np.zeros(len(owners) + 1, np.uint32)  # from a node of the names to one of the tree
    numbers[own + 1] = np.arange(1, len(own) + 1, dtype=np.uint32)
    numbers[1:] = numbers[owners + 1]
    parents, nodes = numbers[named.parents[kept]], numbers[1:][kept]
    del numbers  # such arrays have a row for each of millions of files
    mode = np.concatenate([[named.root], named.modes[own]]).astype(np.uint16)
    kinds = mode[1:] & 0o170000
    regular, links = kinds == stat.S_IFREG, np.flatnonzero(kinds == stat.S_IFLNK)
    files = own[regular]
    ref, count = np.zeros(len(mode), np.uint32), np.zeros(len(mode), np.uint32)
    ref[1:][regular] = np.arange(len(files))
    if len(links):
        ref[1 + links], count[1 + links] = spans(own[links])
    offsets, names = _names_of(named, kept)
    mtime = mtimes(own)
    del own, kept, kinds, regular, links
    with packable(shown):
        tree = build_tree(
            parents=parents,
            nodes=nodes,
            name_offsets=offsets,
            names=names,
            mode=mode,
            mtime=mtime,
            ref=ref,
            count=count,
            targets=named.targets,
            records=len(files),
            source=shown,
        )
    return tree, files


def _names_of(named: Named, kept: npt.NDArray[np.bool_]) -> tuple[UInt32Array, UInt8Array]:
    """Return offsets and names of the entries that are kept."""
    if kept.all():
        return named.name_offsets, named.names
    sizes = np.diff(named.name_offsets)
    offsets = np.concatenate([[0], np.cumsum(sizes[kept])]).astype(np.uint32)
    return offsets, named.names[np.repeat(kept, sizes)]


def _number_records(tree: Tree, files: UInt32Array) -> tuple[Tree, UInt32Array]:
    """Number records, and put the targets of links, in the order of the nodes, depth first."""
    nodes, count = np.empty(len(tree.mode), np.uint32), ffi.new("uint64_t *")
    if lib.fffs_tree_leaves(tree.native, ffi.cast("uint32_t *", nodes.ctypes.data), count) != 0:
        raise MemoryError("not enough memory to number the records")
    nodes = nodes[: count[0]]
    regular = tree.kinds[nodes] == stat.S_IFREG
    leaves, links = nodes[regular], nodes[~regular]
    entries = files[tree.ref[leaves]]
    ref = tree.ref.copy()
    ref[leaves] = np.arange(len(leaves), dtype=np.uint32)
    lengths = tree.count[links].astype(np.int64)
    starts = np.cumsum(lengths) - lengths
    targets = np.empty(int(lengths.sum()), np.uint8)
    for at in range(0, len(links), PIECE):
        part = slice(at, at + PIECE)
        size = int(lengths[part].sum())
        begin = int(starts[at])
        moved = np.repeat(tree.ref[links[part]].astype(np.int64) - starts[part], lengths[part])
        targets[begin : begin + size] = tree.targets[moved + np.arange(begin, begin + size)]
    ref[links] = starts
    return replace(tree, ref=ref, targets=targets), entries


def renumber(tree: Tree) -> tuple[Tree, npt.NDArray[np.int64]]:
    """Return a tree whose files have the records from 0 on, in the order of those that they had, which follow."""
    is_file = tree.kinds == stat.S_IFREG
    records, ranks = unique(tree.ref[is_file].astype(np.int64), return_inverse=True)
    ref = tree.ref.copy()
    ref[is_file] = ranks
    return replace(tree, ref=ref), records


def select(tree: Tree, first: int, stop: int, shown: str, *, others: bool) -> Tree:
    """Return a tree with the files whose records are from ``first`` to before ``stop``, which keep their numbers.

    others: also with all symbolic links and folders; otherwise only with the folders that lead to the files.
    """
    is_folder = tree.kinds == stat.S_IFDIR
    folders = np.flatnonzero(is_folder)
    parents = np.repeat(folders, tree.count[folders])  # of each entry
    kept = (tree.kinds == stat.S_IFREG) & (tree.ref >= first) & (tree.ref < stop)
    if others:
        kept |= tree.kinds != stat.S_IFREG
    above = unique(parents[kept[tree.entry_nodes]])
    while not kept[above].all():
        kept[above] = True
        above = unique(tree.parent[above])
    kept[0] = True
    entries = kept[tree.entry_nodes]
    numbers = np.cumsum(kept, dtype=np.uint32) - np.uint32(1)
    sizes = np.diff(tree.name_offsets)
    return build_tree(
        parents=numbers[parents[entries]],
        nodes=numbers[tree.entry_nodes[entries]],
        name_offsets=np.concatenate([[0], np.cumsum(sizes[entries])]).astype(np.uint32),
        names=tree.names[np.repeat(entries, sizes)],
        mode=tree.mode[kept],
        mtime=tree.mtime[kept],
        ref=np.where(is_folder, 0, tree.ref)[kept],
        count=np.where(is_folder, 0, tree.count)[kept],
        targets=tree.targets,
        records=2**32 - 1,
        source=shown,
    )
