"""Several packed folders as one tree: folders are merged, and the first of several files with one path is shown."""

from __future__ import annotations

import bisect
import stat
from array import array
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from fffs.tree.builder import Array, build_tree
from fffs.tree.tree import ROOT, Tree


def merge(trees: list[Tree], counts: list[int]) -> tuple[Tree, list[tuple[bytes, int]]]:
    """Merge trees; trees[k] is that of a file with counts[k] records.

    Returns:
        The union, whose record numbers count through all files, and (path, number of the tree) of every name that an
        earlier tree hides.

    """
    union = _Union(trees)
    # Folders to fill: their path, and the node of each folder that is merged into it, the first of which is shown.
    todo = [(b"", union.roots)]
    while todo:
        todo += union.merge_folders(*todo.pop())
    return union.build(counts), union.hidden


class _Union:
    """The entries of a union. Its nodes are numbered through all trees. Not thread-safe.

    Memory and time per file are what counts here: a union may have millions.
    """

    def __init__(self, trees: Sequence[Tree]) -> None:
        self._trees = trees
        self._firsts = [0, *accumulate(len(tree.mode) for tree in trees)]
        self.roots = [first + ROOT for first in self._firsts[:-1]]
        self._kinds = np.concatenate([tree.kinds for tree in trees])
        self._parents, self._sizes = array("q"), array("q")  # of each folder: its node, and how many entries it has
        self._nodes, self._lengths = array("q"), array("q")  # of each entry: its node, and the length of its name
        self._names = bytearray()
        self.hidden: list[tuple[bytes, int]] = []
        """The path and the number of the tree of every name that an earlier tree hides."""

    def merge_folders(self, prefix: bytes, folders: list[int]) -> list[tuple[bytes, list[int]]]:
        """Merge the entries of folders. Returns the folders among these, as (prefix, folders)."""
        shown: dict[bytes, int] = {}
        others: dict[bytes, list[int]] = {}
        for folder in folders:
            tree = self._tree_of(folder)
            first = self._firsts[tree]
            for name, node in self._trees[tree].entries(folder - first):
                if name in shown:
                    others.setdefault(name, []).append(first + node)
                else:
                    shown[name] = first + node
        self._parents.append(folders[0])
        self._sizes.append(len(shown))
        self._nodes.extend(shown.values())
        self._lengths.extend(map(len, shown))
        self._names += b"".join(shown)
        names = list(shown)
        if others:
            self._hide(prefix, {name: [shown[name], *others[name]] for name in names if name in others})
        inner = np.flatnonzero(self._are_folders(np.fromiter(shown.values(), np.int64, len(shown)))).tolist()
        return [
            (prefix + name + b"/", [node for node in (shown[name], *others.get(name, ())) if self._is_folder(node)])
            for name in (names[k] for k in inner)
        ]

    def _hide(self, prefix: bytes, found: dict[bytes, list[int]]) -> None:
        """Note what is hidden. found: the nodes of each name that there is more than once."""
        for name, (shown, *others) in found.items():
            merged = self._is_folder(shown)
            self.hidden += [
                (prefix + name, self._tree_of(node)) for node in others if not (merged and self._is_folder(node))
            ]

    def _tree_of(self, node: int) -> int:
        return bisect.bisect_right(self._firsts, node) - 1

    def _is_folder(self, node: int) -> bool:
        return stat.S_ISDIR(int(self._kinds[node]))

    def _are_folders(self, nodes: Array) -> Array:
        folders: Array = self._kinds[nodes] == stat.S_IFDIR
        return folders

    def build(self, counts: list[int]) -> Tree:
        """Return the union. counts: the number of records of each tree's file."""
        nodes = np.frombuffer(self._nodes, np.int64) if self._nodes else np.empty(0, np.int64)
        is_used = np.zeros(len(self._kinds), bool)
        is_used[ROOT] = is_used[nodes] = True
        numbers = np.cumsum(is_used) - 1
        records, targets = accumulate(counts, initial=0), accumulate((len(t.targets) for t in self._trees), initial=0)
        refs = [_refs(*each) for each in zip(self._trees, records, targets, strict=False)]
        return build_tree(
            parents=numbers[np.repeat(self._parents, self._sizes)],
            nodes=numbers[nodes],
            name_offsets=np.concatenate([[0], np.cumsum(self._lengths, dtype=np.int64)]),
            names=np.frombuffer(self._names, np.uint8),
            mode=np.concatenate([tree.mode for tree in self._trees])[is_used],
            mtime=np.concatenate([tree.mtime for tree in self._trees])[is_used],
            ref=np.concatenate(refs)[is_used],
            count=np.where(self._kinds == stat.S_IFLNK, np.concatenate([t.count for t in self._trees]), 0)[is_used],
            targets=np.concatenate([tree.targets for tree in self._trees]),
            records=sum(counts),
            source="the union of the sources",
        )


def _refs(tree: Tree, first_record: int, first_target: int) -> Array:
    """Return the record of each file in the union, and the offset of the target of each symbolic link."""
    kinds, refs = tree.kinds, tree.ref.astype(np.int64)
    return np.select([kinds == stat.S_IFREG, kinds == stat.S_IFLNK], [refs + first_record, refs + first_target], 0)
