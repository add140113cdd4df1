"""Places: what unpacking makes of a tree: its folders, the first name of each file, and all other names."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from fffs.tree.tree import ROOT, Tree

UInt32Array = npt.NDArray[np.uint32]


class Places:
    """The names of a tree by what is made for them. Only folders have objects of their own: there may be many files.

    ``folders`` has (path, node) of each folder but the root, in pre-order. ``files`` has an entry for each file, its
    lowest, in the order of their records. ``links`` has the other entries of files, and those of symbolic links.
    ``parents`` is the folder of each entry.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree, kinds = tree, tree.kinds
        nodes = tree.entry_nodes
        directories = np.flatnonzero(kinds == stat.S_IFDIR).astype(np.uint32)
        # A valid tree has the entries of directories one after the other, in the order of the directories.
        self.parents: UInt32Array = np.repeat(directories, tree.count[directories])
        self._paths = {ROOT: b""}
        self.folders = list(self._list_folders(np.flatnonzero(kinds[nodes] == stat.S_IFDIR)))
        self._paths.update((node, path) for path, node in self.folders)
        # Of equal indices, the last one is assigned: the lowest entry.
        self._first = np.zeros(len(kinds), np.uint32)
        self._first[nodes[::-1]] = np.arange(len(nodes), dtype=np.uint32)[::-1]
        regular = np.flatnonzero(kinds == stat.S_IFREG)
        self.files: UInt32Array = self._first[regular[np.argsort(tree.ref[regular], kind="stable")]]
        others = kinds[nodes] != stat.S_IFDIR
        others[self.files] = False
        self.links: UInt32Array = np.flatnonzero(others).astype(np.uint32)

    def _list_folders(self, entries: npt.NDArray[Any]) -> Iterator[tuple[bytes, int]]:
        below: dict[int, list[tuple[bytes, int]]] = {}
        for entry in entries[::-1].tolist():
            child = self._tree.name(entry), int(self._tree.entry_nodes[entry])
            below.setdefault(int(self.parents[entry]), []).append(child)
        stack = below.get(ROOT, [])
        while stack:
            path, node = stack.pop()
            yield path, node
            stack += ((path + b"/" + name, child) for name, child in below.get(node, ()))

    def folder_of(self, entry: int) -> bytes:
        """Return the path of an entry's folder."""
        return self._paths[int(self.parents[entry])]

    def path(self, entry: int) -> bytes:
        """Return the path of an entry."""
        return os.path.join(self.folder_of(entry), self._tree.name(entry))

    def first_path(self, node: int) -> bytes:
        """Return the path of the lowest entry of a file, which is made before its other names."""
        return self.path(int(self._first[node]))
