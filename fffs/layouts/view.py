"""View: what a source is shown as, numbered inodes with names, attributes and bytes. ``TreeView`` shows a tree.

The mount translates a view for the kernel and decides nothing. A view never waits for a disk: what has to be decoded
first raises NotDecoded, and the caller has ``decode`` do that where it likes, then ``keep`` what comes out, then asks
again.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fffs.base.withblock import Closing
from fffs.layouts.rows import DecodedFiles, File
from fffs.records.store import RecordStore
from fffs.tree.tree import ROOT, Tree

ROOT_INODE = 1
BLOCK_SIZE = 4096
CAPACITY = 64 << 20
"""Bytes of all decoded items that a view keeps; an item that is larger is kept alone."""


class Attributes(NamedTuple):
    """What stat(2) shows. mode: with the type. size: in bytes. mtime: in ns. lasts: False if it may change."""

    mode: int
    nlink: int
    size: int
    mtime: int
    lasts: bool = True


class NodeError(OSError):
    """An inode does not exist (ESTALE), or is not of the type that the question needs (ENOTDIR, EISDIR)."""

    def __init__(self, number: int) -> None:
        super().__init__(number, os.strerror(number))
        self.number = number


class NotDecoded(Exception):  # noqa: N818 -- a step of every answer, not an error
    """An item has to be decoded before the question can be answered.

    number: for ``View.decode``. inode: what failures are reported of. record: what the item is read from.
    """

    def __init__(self, number: int, inode: int, record: int) -> None:
        self.number, self.inode, self.record = number, inode, record


class View(Closing):
    """What a source is shown as. Owns the store. For one thread at a time, except ``decode``.

    ``inodes``: how many there are, as far as that is known without decoding.

    Raises:
        NodeError: from every method that takes an inode; a client of an NFS server may remember one of another mount.
        NotDecoded: from every method but ``path``.

    """

    def __init__(self, store: RecordStore, inodes: int, warnings: Sequence[str] = ()) -> None:
        """warnings: lines for the user."""
        self.store, self.inodes, self.warnings = store, inodes, tuple(warnings)
        self._kept: OrderedDict[int, Any] = OrderedDict()
        self._cost = 0

    def close(self) -> None:
        """Close the files."""
        self.store.close()

    def attributes(self, inode: int) -> Attributes:
        """What stat(2) shows."""
        raise NotImplementedError

    def lookup(self, inode: int, name: bytes) -> int | None:
        """The inode that a name leads to, if any. NFS servers, which remember inodes only, ask for ``..`` as well."""
        raise NotImplementedError

    def entries(self, inode: int, start: int = 0) -> Iterator[tuple[bytes, int]]:
        """(name, inode) of a directory, ``.`` and ``..`` first, from a position on. The order never changes."""
        raise NotImplementedError

    def file(self, inode: int) -> File:
        """Where a file's bytes are."""
        raise NotImplementedError

    def target(self, inode: int) -> bytes:
        """What a symbolic link says."""
        raise NodeError(errno.EINVAL)

    def record(self, inode: int) -> int | None:
        """The record that an inode comes from, if it is one."""
        raise NotImplementedError

    def path(self, inode: int) -> bytes:
        """A path that leads to an inode from the root, for messages."""
        raise NotImplementedError

    def decode(self, number: int) -> Any:
        """Read and decode an item. May be called from several threads at a time.

        Raises:
            RecordError: it is damaged. ReadError, SourceChangedError, MemoryError.

        """
        raise NotImplementedError

    def keep(self, number: int, item: Any) -> None:
        """Remember what ``decode`` returned, and forget what was not asked for lately."""
        self._kept[number] = item
        self._cost += item.cost
        while self._cost > CAPACITY and len(self._kept) > 1:
            self._cost -= self._kept.popitem(last=False)[1].cost

    def _decoded(self, number: int, inode: int, record: int) -> Any:
        """What ``keep`` was given; raises NotDecoded."""
        if number not in self._kept:
            raise NotDecoded(number, inode, record)
        self._kept.move_to_end(number)
        return self._kept[number]


class TreeView(View):
    """A tree whose files are records. An inode is a node plus one.

    ``layout``: "packed", "union" (of packed folders), "plain" (numbered records) or "granular" (a data set).
    ``forwarded``: uint8[nodes], 1: a file that is not the bytes of its record; None: there are none.
    """

    forwarded: Any = None

    def __init__(self, tree: Tree, store: RecordStore, warnings: Sequence[str] = (), layout: str = "") -> None:
        super().__init__(store, len(tree.mode), warnings)
        self.tree, self.layout = tree, layout
        # Items of a memoryview are Python ints at once, which numpy's are not.
        self._mode, self._nlink, self._mtime = memoryview(tree.mode), memoryview(tree.nlink), memoryview(tree.mtime)
        self._ref, self._count, self._parent = memoryview(tree.ref), memoryview(tree.count), memoryview(tree.parent)

    def _node(self, inode: int) -> int:
        if not ROOT_INODE <= inode <= self.inodes:
            raise NodeError(errno.ESTALE)
        return inode - 1

    def attributes(self, inode: int) -> Attributes:
        """As in ``View``."""
        node = self._node(inode)
        mode, size = self._mode[node], BLOCK_SIZE
        if stat.S_ISREG(mode):
            size = self.store.length(self._ref[node])
        elif stat.S_ISLNK(mode):
            size = self._count[node]
        return Attributes(mode, self._nlink[node], size, self._mtime[node])

    def lookup(self, inode: int, name: bytes) -> int | None:
        """As in ``View``."""
        node = self._node(inode)
        if name == b".":
            return inode
        child = self._parent[node] if name == b".." else self.tree.lookup(node, name)
        return None if child is None else child + 1

    def entries(self, inode: int, start: int = 0) -> Iterator[tuple[bytes, int]]:
        """As in ``View``."""
        node = self._node(inode)
        dots = ((b".", inode), (b"..", self._parent[node] + 1))[start:]
        found = self.tree.entries(node, max(start - 2, 0))
        return itertools.chain(dots, ((name, child + 1) for name, child in found))

    def file(self, inode: int) -> File:
        """As in ``View``."""
        node = self._node(inode)
        if not stat.S_ISREG(self._mode[node]):
            raise NodeError(errno.EISDIR)
        record = self._ref[node]
        return File(record=record, length=self.store.length(record))

    def target(self, inode: int) -> bytes:
        """As in ``View``."""
        return self.tree.target(self._node(inode))

    def record(self, inode: int) -> int | None:
        """As in ``View``."""
        node = self._node(inode)
        return self._ref[node] if stat.S_ISREG(self._mode[node]) else None

    def path(self, inode: int) -> bytes:
        """The first of its hard links. Looks through all entries."""
        return self.paths([inode])[0]

    def paths(self, inodes: Sequence[int]) -> list[bytes]:
        """The path of each, the first of its hard links. Looks through all entries once."""
        tree = self.tree
        nodes = [self._node(inode) for inode in inodes]
        entries = np.flatnonzero(np.isin(tree.entry_nodes, nodes))
        first = {int(tree.entry_nodes[entry]): entry for entry in entries[::-1].tolist()}
        # Directories share out the entries in the order of their numbers, so their first entries ascend.
        directories = np.flatnonzero((tree.kinds == stat.S_IFDIR) & (tree.count > 0))
        above = directories[np.searchsorted(tree.ref[directories], list(first.values()), side="right") - 1]
        found = {ROOT: b""}
        for (node, entry), directory in zip(first.items(), above.tolist(), strict=True):
            found[node] = self._prefix(directory) + tree.name(entry)
        return [found[node] for node in nodes]

    def _prefix(self, directory: int) -> bytes:
        """The path of a directory and a slash; nothing for the root."""
        parts: list[bytes] = []
        while directory != ROOT:
            above = self._parent[directory]
            begin, end = self._ref[above], self._ref[above] + self._count[above]
            entry = begin + int(np.argmax(self.tree.entry_nodes[begin:end] == directory))
            parts.append(self.tree.name(entry) + b"/")
            directory = above
        return b"".join(reversed(parts))

    def inodes_of(self, records: npt.NDArray[np.int64]) -> list[int]:
        """For each record a file that is in it. Looks through all nodes once."""
        nodes = np.flatnonzero((self.tree.kinds == stat.S_IFREG) & np.isin(self.tree.ref, records))
        first = {int(self.tree.ref[node]): node + 1 for node in nodes[::-1].tolist()}
        return [first[record] for record in records.tolist()]


class DecodedTreeView(TreeView):
    """A tree some of whose files are decoded when they are looked at. An item is a File, its number the record's."""

    def __init__(self, tree: Tree, store: RecordStore, decoded: DecodedFiles, warnings: Sequence[str] = ()) -> None:
        super().__init__(tree, store, warnings)
        self.forwarded, self._load = decoded.nodes, decoded.load
        self._is_decoded = memoryview(decoded.nodes)

    def attributes(self, inode: int) -> Attributes:
        """As in ``View``. What cannot be read has a byte at least, so that the kernel asks for it."""
        found = super().attributes(inode)
        if not self._is_decoded[inode - 1]:
            return found
        file = self.file(inode)
        size = max(file.size, 1) if file.problem else file.size
        return found._replace(size=size, lasts=not file.problem)  # a source that cannot be read may become good again

    def file(self, inode: int) -> File:
        """As in ``View``."""
        file = super().file(inode)
        return self._decoded(file.record, inode, file.record) if self._is_decoded[inode - 1] else file

    def decode(self, number: int) -> File:
        """As in ``View``."""
        return self._load(number)
