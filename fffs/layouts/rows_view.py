"""RowsView: shows a folder for each row, which is decoded when it is looked into.

Inode 1 is the root, 2 and the following are the files beside the rows, and node k of row i is (i + 1) * 2**32 + k.
Inode numbers are computed, so the view does not have to remember those that the kernel knows.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Iterator, Sequence

from fffs.errors import UnsupportedError
from fffs.layouts.plain import digits_for
from fffs.layouts.rows import FileContent, Row, RowFolder, Rows
from fffs.layouts.view import BLOCK_SIZE, ROOT_INODE, Attributes, NodeError, View
from fffs.records.store import RecordStore
from fffs.tree.builder import DIRECTORY, FILE

ROW = 1 << 32
MOST_ROWS = (1 << 31) - 1
# The link count of directories that do not count their subfolders; find(1) then searches a row's folder for them.
UNCOUNTED = 1


class RowsView(View):
    """Shows the rows of a source. The items that it decodes are Rows; the number of an item is that of its row."""

    def __init__(self, rows: Rows, store: RecordStore, warnings: Sequence[str] = ()) -> None:
        """Raises UnsupportedError: there are too many rows."""
        if rows.n > MOST_ROWS:
            raise UnsupportedError(f"{store.files[0].index.path}: {rows.n} rows are too many to show")
        self._names = sorted(rows.files)
        super().__init__(store, 1 + rows.n + len(self._names), warnings)
        self.rows = rows
        self._digits = digits_for(rows.n)
        self._row_folder: Attributes = (DIRECTORY, UNCOUNTED, BLOCK_SIZE, rows.mtime, True)  # the same for each row
        self._end = (rows.n + 1) * ROW

    def _number(self, inode: int) -> int:
        """Return the number of the row of an inode."""
        if not ROW <= inode < self._end:
            raise NodeError(errno.ESTALE)
        return inode // ROW - 1

    def _node(self, inode: int) -> tuple[Row, FileContent | RowFolder]:
        """Return the row and the node of an inode in a row."""
        number = self._number(inode)
        row: Row = self._decoded(number, inode // ROW * ROW, self.rows.record(number))
        if inode % ROW >= len(row.nodes):
            raise NodeError(errno.ESTALE)
        return row, row.nodes[inode % ROW]

    def _is_beside(self, inode: int) -> bool:
        return ROOT_INODE < inode <= ROOT_INODE + len(self._names)

    def attributes(self, inode: int) -> Attributes:
        """As in ``View``. For the folder of a row, the row is not decoded."""
        if inode % ROW == 0 and ROW <= inode < self._end:
            return self._row_folder
        if inode == ROOT_INODE:
            return DIRECTORY, 2 + self.rows.n, BLOCK_SIZE, self.rows.mtime, True
        node = self.file(inode) if self._is_beside(inode) else self._node(inode)[1]
        if isinstance(node, FileContent):
            return FILE, 1, node.size, self.rows.mtime, True
        return DIRECTORY, 2 + node.folders, BLOCK_SIZE, self.rows.mtime, True

    def lookup(self, inode: int, name: bytes) -> int | None:
        """As in ``View``."""
        if inode == ROOT_INODE:
            return self._lookup_root(name)
        if self._is_beside(inode):
            if name not in (b".", b".."):
                raise NodeError(errno.ENOTDIR)
            return inode if name == b"." else ROOT_INODE
        if inode % ROW == 0 and name in (b".", b".."):
            return inode if name == b"." and self._number(inode) >= 0 else ROOT_INODE
        row, node = self._node(inode)
        if name == b".":
            return inode
        if not isinstance(node, RowFolder):
            raise NodeError(errno.ENOTDIR)
        child = row.parents[inode % ROW] if name == b".." else node.nodes.get(name)
        return None if child is None else inode // ROW * ROW + child

    def _lookup_root(self, name: bytes) -> int | None:
        if name in (b".", b".."):
            return ROOT_INODE
        if name in self.rows.files:
            return ROOT_INODE + 1 + self._names.index(name)
        if len(name) == self._digits and name.isdigit() and int(name) < self.rows.n:
            return (int(name) + 1) * ROW
        return None

    def entries(self, inode: int, start: int = 0) -> Iterator[tuple[bytes, int]]:
        """As in ``View``."""
        skip = max(start - 2, 0)
        if inode == ROOT_INODE:
            dots = ((b".", ROOT_INODE), (b"..", ROOT_INODE))[start:]
            beside = range(max(skip - self.rows.n, 0), len(self._names))
            return itertools.chain(
                dots,
                ((b"%0*d" % (self._digits, number), (number + 1) * ROW) for number in range(skip, self.rows.n)),
                ((self._names[k], ROOT_INODE + 1 + k) for k in beside),
            )
        row, folder = self._node(inode)
        if not isinstance(folder, RowFolder):
            raise NodeError(errno.ENOTDIR)
        first, base = next(iter(folder.nodes.values()), 0), inode // ROW * ROW  # nodes of a folder are consecutive
        above = base + row.parents[inode % ROW] if inode % ROW else ROOT_INODE
        children = range(first + skip, first + len(folder.nodes))
        dots = ((b".", inode), (b"..", above))[start:]
        return itertools.chain(dots, ((row.names[child], base + child) for child in children))

    def file(self, inode: int) -> FileContent:
        """As in ``View``."""
        if self._is_beside(inode):
            return self.rows.files[self._names[inode - ROOT_INODE - 1]]
        node = self._node(inode)[1]
        if not isinstance(node, FileContent):
            raise NodeError(errno.EISDIR)
        return node

    def record(self, inode: int) -> int | None:
        """As in ``View``. A file without a record of its own comes from the record of its row."""
        if inode == ROOT_INODE:
            return None
        if inode >= ROW and inode % ROW == 0:
            return self.rows.record(self._number(inode))
        node = self.file(inode) if self._is_beside(inode) else self._node(inode)[1]
        if isinstance(node, RowFolder):
            return None
        return node.record if node.record >= 0 else self.rows.record(self._number(inode))

    def path(self, inode: int) -> bytes:
        """As in ``View``. If the row is not decoded, the path of its folder."""
        if inode < ROW:
            return self._names[inode - ROOT_INODE - 1] if self._is_beside(inode) else b""
        number = self._number(inode)
        row: Row | None = self._kept.get(number)
        inner = row.path(inode % ROW) if row else b""
        return b"%0*d" % (self._digits, number) + (b"/" + inner if inner else b"")

    def decode(self, number: int) -> Row:
        """As in ``View``."""
        return self.rows.load(number)
