"""Several packed folders as one tree: folders are merged, and the first of several files with one path is shown."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from fffs.errors import UnsupportedError
from fffs.native import ffi, lib
from fffs.tree.tree import COLUMNS, Tree

SOURCE = "the union of the sources"
PER_NODE = ("mtime", "nlink", "ref", "count", "parent", "mode")


class Union(NamedTuple):
    """A union of trees. A tree hides a name of a later one unless both are folders.

    ``named`` has the path and the number of the tree of the first hidden names; ``hidden`` counts them all, except for
    what is below a hidden folder.
    """

    tree: Tree
    named: list[tuple[bytes, int]]
    hidden: int


def merge(trees: Sequence[Tree], counts: Sequence[int], limit: int) -> Union:
    """Merge trees; trees[k] is that of a file with counts[k] records. The union's records count through all files.

    limit: the most hidden names that are named.

    Raises:
        UnsupportedError: the union is too large for a tree.
        MemoryError: not enough memory.

    """
    if sum(len(tree.targets) for tree in trees) >= 2**32 - 1:
        raise _too_large()
    arrays = _room(trees)
    out = ffi.new("fffs_merged *")
    for name, array in arrays.items():
        setattr(out, name, ffi.cast(ffi.typeof(getattr(out, name)), array.ctypes.data))
    found = ffi.new("fffs_hidden_name[]", limit)
    out.hidden_names, out.hidden_room = found, limit
    status = lib.fffs_tree_merge(_sources(trees, counts), len(trees), out)
    if status == -errno.EOVERFLOW:
        raise _too_large()
    if status != 0:
        raise MemoryError("not enough memory to merge the trees of the sources")
    targets = np.concatenate([tree.targets for tree in trees])
    union = Tree(**_used(arrays, out), targets=targets).validate(sum(counts), SOURCE)
    named = found[0 : min(out.hidden, limit)]
    paths = [(union.prefix(name.folder) + trees[name.source].name(name.entry), name.source) for name in named]
    return Union(union, paths, out.hidden)


def _too_large() -> UnsupportedError:
    return UnsupportedError(f"{SOURCE} has more names or records than a tree can hold; open fewer at a time")


def _sources(trees: Sequence[Tree], counts: Sequence[int]) -> Any:
    sources = ffi.new("fffs_merge_source[]", len(trees))
    firsts = zip(
        accumulate(counts, initial=0),
        accumulate((len(tree.targets) for tree in trees), initial=0),
        accumulate((len(tree.mode) for tree in trees), initial=0),
        strict=True,
    )
    for source, tree, first in zip(sources, trees, firsts, strict=False):
        source.tree = tree.native
        source.first_record, source.first_target, source.first_node = first
    return sources


def _room(trees: Sequence[Tree]) -> dict[str, Any]:
    """Return arrays with room for all trees. Pages of them that are not written take no memory."""
    sizes = {
        **dict.fromkeys(PER_NODE, sum(len(tree.mode) for tree in trees)),
        "name_offsets": sum(len(tree.entry_nodes) for tree in trees) + 1,
        "entry_nodes": sum(len(tree.entry_nodes) for tree in trees),
        "names": sum(len(tree.names) for tree in trees),
    }
    return {name: np.empty(size, COLUMNS[name]) for name, size in sizes.items()}


def _used(arrays: dict[str, Any], out: Any) -> dict[str, Any]:
    sizes = {
        **dict.fromkeys(PER_NODE, out.nodes),
        "name_offsets": out.entries + 1,
        "entry_nodes": out.entries,
        "names": out.names_size,
    }
    return {name: array[: sizes[name]] for name, array in arrays.items()}
