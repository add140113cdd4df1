"""View: shows a source as numbered inodes with names, attributes and bytes. ``TreeView`` shows a tree.

The mount only translates a view for the kernel. A view never waits for a disk: when an item must be decoded first, it
raises NotDecoded. The caller then calls ``decode``, in any thread, passes the result to ``keep``, and asks again.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fffs.base.numbers import isin
from fffs.base.withblock import Closing
from fffs.errors import EntryNotFoundError
from fffs.layouts.rows import DecodedFiles, FileContent
from fffs.records.store import RecordStore
from fffs.tree.tree import ROOT, Tree

ROOT_INODE = 1
BLOCK_SIZE = 4096
CAPACITY = 64 << 20
"""The most bytes of decoded items that a view keeps. A larger item is kept alone."""


# (mode and type, nlink, size in bytes, mtime in ns, lasts). lasts: False if they may change. A plain tuple, because
# listings make one for each entry.
Attributes: TypeAlias = tuple[int, int, int, int, bool]


class NodeError(OSError):
    """An inode does not exist (ESTALE), or has the wrong type (ENOTDIR, EISDIR, EINVAL)."""

    def __init__(self, number: int) -> None:
        super().__init__(number, os.strerror(number))
        self.number = number


class NotDecoded(Exception):  # noqa: N818 -- part of normal operation, not an error
    """An item must be decoded before the method can return a result.

    number: the argument of ``View.decode``. inode: named when decoding fails. record: where the item is read from.
    """

    def __init__(self, number: int, inode: int, record: int) -> None:
        self.number, self.inode, self.record = number, inode, record


class View(Closing):
    """Shows a source. Owns the store. May be used by one thread at a time, except ``decode``.

    ``inodes``: the number of inodes, as far as it is known without decoding.

    Raises:
        NodeError: from every method that takes an inode; an NFS client may send an inode number of an earlier mount.
        NotDecoded: from every method but ``path``.

    """

    def __init__(self, store: RecordStore, inodes: int, warnings: Sequence[str] = ()) -> None:
        """warnings: lines to show to the user."""
        self.store, self.inodes, self.warnings = store, inodes, tuple(warnings)
        self._kept: OrderedDict[int, Any] = OrderedDict()
        self._cost = 0

    def close(self) -> None:
        """Close the files."""
        self.store.close()

    def attributes(self, inode: int) -> Attributes:
        """Return the attributes that stat(2) shows."""
        raise NotImplementedError

    def lookup(self, inode: int, name: bytes) -> int | None:
        """Return the inode of a name in a directory, or None. NFS servers, which keep only inodes, look up ``..``."""
        raise NotImplementedError

    def entries(self, inode: int, start: int = 0) -> Iterator[tuple[bytes, int]]:
        """Yield (name, inode) of a directory from a position on, ``.`` and ``..`` first. The order never changes."""
        raise NotImplementedError

    def file(self, inode: int) -> FileContent:
        """Return where a file's bytes are."""
        raise NotImplementedError

    def target(self, inode: int) -> bytes:
        """Return the target of a symbolic link."""
        raise NodeError(errno.EINVAL)

    def record(self, inode: int) -> int | None:
        """Return the record that an inode comes from, or None."""
        raise NotImplementedError

    def path(self, inode: int) -> bytes:
        """Return a path of an inode, relative to the root, for messages."""
        raise NotImplementedError

    def count_read(self) -> int:
        """Return how many records can be read through the view and are not empty. May be called from any thread."""
        return int(np.count_nonzero(self._nonempty()))

    def _nonempty(self) -> npt.NDArray[np.bool_]:
        """Return for each record whether it has bytes."""
        indexes = [file.index for file in self.store.files]
        return np.concatenate([np.empty(0, bool), *(index.ends > index.starts for index in indexes)])

    def decode(self, number: int) -> Any:
        """Read and decode an item. May be called from several threads at a time.

        Raises:
            RecordError: the record is damaged. ReadError, SourceChangedError, MemoryError: it cannot be read.

        """
        raise NotImplementedError

    def keep(self, number: int, item: Any) -> None:
        """Keep an item that ``decode`` returned, and drop the least recently used ones beyond ``CAPACITY``.

        Two items stay, however large they are: programs that compare files read two in turn.
        """
        self._kept[number] = item
        self._cost += item.cost
        while self._cost > CAPACITY and len(self._kept) > 2:
            self._cost -= self._kept.popitem(last=False)[1].cost

    def _decoded(self, number: int, inode: int, record: int) -> Any:
        """Return a kept item. Raises NotDecoded if it is not kept."""
        if number not in self._kept:
            raise NotDecoded(number, inode, record)
        self._kept.move_to_end(number)
        return self._kept[number]


class TreeView(View):
    """Shows a tree whose files are records. An inode is a node plus one.

    ``layout``: "packed", "union" (of packed folders), "plain" (numbered records) or "granular" (a data set).
    ``forwarded``: uint8[nodes], 1 for a file that is not the bytes of its record. None: there are no such files.
    """

    forwarded: Any = None

    def __init__(self, tree: Tree, store: RecordStore, warnings: Sequence[str] = (), layout: str = "") -> None:
        super().__init__(store, len(tree.mode), warnings)
        self.tree, self.layout = tree, layout
        # Indexing a memoryview gives Python ints; indexing a numpy array gives scalars that have to be converted.
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
        return mode, self._nlink[node], size, self._mtime[node], True

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

    def file(self, inode: int) -> FileContent:
        """As in ``View``."""
        node = self._node(inode)
        if not stat.S_ISREG(self._mode[node]):
            raise NodeError(errno.EISDIR)
        record = self._ref[node]
        return FileContent(record=record, length=self.store.length(record))

    def target(self, inode: int) -> bytes:
        """As in ``View``."""
        return self.tree.target(self._node(inode))

    def record(self, inode: int) -> int | None:
        """As in ``View``."""
        node = self._node(inode)
        return self._ref[node] if stat.S_ISREG(self._mode[node]) else None

    def count_read(self) -> int:
        """As in ``View``: without trees of packs, and the padding of aligned ones."""
        shown = np.zeros(self.store.n, bool)
        shown[self.tree.ref[self.tree.kinds == stat.S_IFREG]] = True
        return int(np.count_nonzero(shown & self._nonempty()))

    def path(self, inode: int) -> bytes:
        """Return the path of the first hard link of an inode. Searches all entries."""
        return self.paths([inode])[0]

    def paths(self, inodes: Sequence[int]) -> list[bytes]:
        """Return the path of the first hard link of each inode. Searches all entries once."""
        tree = self.tree
        nodes = [self._node(inode) for inode in inodes]
        entries = np.flatnonzero(isin(tree.entry_nodes, nodes))
        first = {int(tree.entry_nodes[entry]): entry for entry in entries[::-1].tolist()}
        # The entries of directories are in the order of the directories' nodes, so their first entries ascend.
        directories = np.flatnonzero((tree.kinds == stat.S_IFDIR) & (tree.count > 0))
        above = directories[np.searchsorted(tree.ref[directories], list(first.values()), side="right") - 1]
        found = {ROOT: b""}
        for (node, entry), directory in zip(first.items(), above.tolist(), strict=True):
            found[node] = tree.prefix(directory) + tree.name(entry)
        return [found[node] for node in nodes]

    def inodes_of(self, records: npt.NDArray[np.int64]) -> list[int]:
        """Return for each record the inode of a file with its bytes. Searches all nodes once."""
        nodes = np.flatnonzero((self.tree.kinds == stat.S_IFREG) & isin(self.tree.ref, records))
        first = {int(self.tree.ref[node]): node + 1 for node in nodes[::-1].tolist()}
        return [first[record] for record in records.tolist()]


class DecodedTreeView(TreeView):
    """Shows a tree in which some files are decoded on demand. The number of an item is that of its record."""

    def __init__(self, tree: Tree, store: RecordStore, decoded: DecodedFiles, warnings: Sequence[str] = ()) -> None:
        super().__init__(tree, store, warnings)
        self.forwarded, self._load = decoded.nodes, decoded.load
        self._is_decoded = memoryview(decoded.nodes)

    def attributes(self, inode: int) -> Attributes:
        """As in ``View``. A file that cannot be read has at least one byte, so that the kernel tries to read it."""
        found = super().attributes(inode)
        if not self._is_decoded[inode - 1]:
            return found
        file = self.file(inode)
        size = max(file.size, 1) if file.problem else file.size
        return *found[:2], size, found[3], not file.problem  # an unreadable source may become readable

    def file(self, inode: int) -> FileContent:
        """As in ``View``."""
        file = super().file(inode)
        return self._decoded(file.record, inode, file.record) if self._is_decoded[inode - 1] else file

    def decode(self, number: int) -> FileContent:
        """As in ``View``."""
        return self._load(number)


def not_found(path: str, pack: str) -> EntryNotFoundError:
    """Return the error for a path that is not in a pack."""
    return EntryNotFoundError(f"{path!r}: no such file or folder in {pack}")
