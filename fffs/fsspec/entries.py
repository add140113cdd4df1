"""Entries of a tree view as dictionaries, as fsspec has them; many at a time, from the columns of the tree."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from fffs.layouts.view import ROOT_INODE, TreeView

TYPES: Final = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}

Nodes = npt.NDArray[Any]


class Entries:
    """The entries of a view as dictionaries. Immutable; may be used from any thread.

    An entry has "name", "size", "type" ("file", "directory" or "link"), "mode", "mtime", "nlink", "ino", and "ETag",
    which differs for different sources. A link also has "islink" and "destination".
    """

    def __init__(self, view: TreeView) -> None:
        self.view = view
        self._version = ""

    @property
    def version(self) -> str:
        """A text that is another one for another source."""
        if not self._version:
            files = [(one.size, one.framing, one.check, one.checksums, one.mtime) for one in self.view.store.identity]
            self._version = sha256(repr(files).encode()).hexdigest()[:32]
        return self._version

    def describe(self, node: int, name: str) -> dict[str, Any]:
        """Return the attributes of a node, which is shown under a path."""
        mode, nlink, size, mtime, _ = self.view.attributes(node + ROOT_INODE)
        kind = TYPES[stat.S_IFMT(mode)]
        info = {"name": name, "size": size if kind == "file" else 0, "type": kind, "mode": mode, "mtime": mtime / 1e9}
        info |= {"nlink": nlink, "ino": node + ROOT_INODE, "ETag": f"{self.version}-{node + ROOT_INODE}"}
        if kind == "link":
            self._describe_link(info, node)
        return info

    def listing(self, folder: int, path: str, *, detail: bool) -> list[Any]:
        """Return what is in a folder: attributes, or only the paths. path: that of the folder."""
        low, high = self._span(folder)
        prefix, names = f"{path}/" if path else "", self.view.tree.names_of(low, high)
        if prefix:
            names = [prefix + name for name in names]
        return self._describe_all(names, self.view.tree.entry_nodes[low:high]) if detail else names

    def below(self, folder: int, path: str, depth: int | None, *, folders: bool, detail: bool) -> list[Any]:
        """Return everything below a folder: attributes, or only the paths.

        depth: the most levels. folders: include them, not only files and links.
        """
        names, nodes = self._below(folder, path, depth, folders)
        return self._describe_all(names, nodes) if detail else names

    def _span(self, folder: int) -> tuple[int, int]:
        first = int(self.view.tree.ref[folder])
        return first, first + int(self.view.tree.count[folder])

    def _below(self, folder: int, path: str, depth: int | None, folders: bool) -> tuple[list[str], Nodes]:
        """Return paths and nodes. The only loop in Python over all names is the one that makes each text."""
        tree = self.view.tree
        names: list[str] = []
        spans = [np.empty(0, np.uint32)]
        for prefix, low, high in self._folders(folder, path, depth):
            names += [prefix + name for name in tree.names_of(low, high)]
            spans.append(tree.entry_nodes[low:high])
        nodes = np.concatenate(spans)
        if folders:
            return names, nodes
        kept = np.flatnonzero(tree.kinds[nodes] != stat.S_IFDIR)
        if len(kept) < len(nodes):
            names = [names[k] for k in kept.tolist()]
        return names, nodes[kept]

    def _folders(self, folder: int, path: str, depth: int | None) -> Iterator[tuple[str, int, int]]:
        """Yield each folder that is searched: the prefix of the paths in it, and its entries."""
        tree, kinds = self.view.tree, self.view.tree.kinds
        stack = [(f"{path}/" if path else "", folder, 1)]
        while stack:
            prefix, node, level = stack.pop()
            low, high = self._span(node)
            if low == high:
                continue
            yield prefix, low, high
            if depth is not None and level >= depth:
                continue
            for k in np.flatnonzero(kinds[tree.entry_nodes[low:high]] == stat.S_IFDIR).tolist():
                name = os.fsdecode(tree.name(low + k))
                stack.append((f"{prefix}{name}/", int(tree.entry_nodes[low + k]), level + 1))

    def _describe_all(self, names: list[str], nodes: Nodes) -> list[dict[str, Any]]:
        """Return the attributes of nodes. Everything but the dictionaries is made for all at once."""
        tree, index = self.view.tree, self.view.store.index
        kinds = tree.kinds[nodes]
        files = kinds == stat.S_IFREG
        records = tree.ref[nodes][files]
        sizes = np.zeros(len(nodes), np.int64)
        sizes[files] = index.ends[records] - index.starts[records]
        columns = (kinds, sizes, tree.mode[nodes], tree.mtime[nodes] / 1e9, tree.nlink[nodes], nodes + ROOT_INODE)
        version = self.version
        found = [
            {
                "name": name,
                "size": size,
                "type": TYPES[kind],
                "mode": mode,
                "mtime": mtime,
                "nlink": nlink,
                "ino": ino,
                "ETag": f"{version}-{ino}",
            }
            for name, kind, size, mode, mtime, nlink, ino in zip(
                names, *(column.tolist() for column in columns), strict=True
            )
        ]
        for k in np.flatnonzero(kinds == stat.S_IFLNK).tolist():
            self._describe_link(found[k], int(nodes[k]))
        return found

    def _describe_link(self, info: dict[str, Any], node: int) -> None:
        tree = self.view.tree
        info["islink"], info["destination"] = True, os.fsdecode(tree.target(node))
        target = tree.follow(os.fsencode(info["name"]))
        if target is not None and tree.is_file(target):
            info["size"] = self.view.store.length(tree.record(target))
