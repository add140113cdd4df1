"""pyfuse3's operations over Rows: folders that are made when somebody looks into them.

Inode 1 is the root, 2 and the following are the files beside the rows, and node k of row i is (i + 1) * 2**32 + k: so
nothing has to be remembered for the kernel. A file handle is an inode.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from typing import NoReturn

import pyfuse3

from fffs.errors import ReadError, RecordError, SourceChangedError, UnsupportedError
from fffs.layouts import Source
from fffs.layouts.plain import digits_for
from fffs.layouts.rows import File, Folder, Row
from fffs.mount.fs.attributes import BLOCK_SIZE, ROOT_INODE, Common
from fffs.mount.fs.cache import Cache
from fffs.mount.fs.failures import Failures
from fffs.mount.fs.ranges import Ranges
from fffs.mount.fs.refusals import ReadOnlyOperations, answered
from fffs.mount.options import MountOptions
from fffs.tree.builder import DIRECTORY, FILE
from fffs.tree.tree import NAME_MAX

ROW = 1 << 32
MOST_ROWS = (1 << 31) - 1
# What the file systems say that do not count: who looks through a row's folder must not believe that it has no folders.
UNCOUNTED = 1


class RowOperations(ReadOnlyOperations):
    """The file system. Only for the thread that runs the event loop; ``source`` stays the caller's to close."""

    def __init__(self, source: Source, options: MountOptions) -> None:
        """Raises UnsupportedError: there are too many rows."""
        assert source.rows is not None
        self._rows, self._store = source.rows, source.store
        if self._rows.n > MOST_ROWS:
            raise UnsupportedError(
                f"{source.store.files[0].index.path}: {self._rows.n} rows are more than can be shown"
            )
        self._common = Common(source.store, options)
        self._ranges = Ranges(source.store, options.verify)
        self._cache = Cache(self._rows.load)
        self._digits = digits_for(self._rows.n)
        self._names = sorted(self._rows.files)
        self.failures = Failures(self._path_of)
        self._looked_at: Row | None = None  # whose failure is being reported

    # ------------------------------------------------------------ rows

    def _name(self, number: int) -> bytes:
        return b"%0*d" % (self._digits, number)

    def _number(self, inode: int) -> int:
        """The row of an inode. A client of an NFS server may remember one of another mount."""
        if not ROW <= inode < (self._rows.n + 1) * ROW:
            raise pyfuse3.FUSEError(errno.ESTALE)
        return inode // ROW - 1

    async def _row(self, number: int) -> Row:
        """A row; EIO when it cannot be read."""
        record = self._rows.record(number)
        try:
            return await self._cache.get(number, self._store.length(record), self._ranges.limiter(record))
        except (RecordError, ReadError, SourceChangedError, MemoryError) as error:
            self._fail((number + 1) * ROW, record, error)

    def _fail(self, inode: int, record: int, error: Exception, row: Row | None = None) -> NoReturn:
        self._looked_at = row
        self.failures.add(inode, record, error)
        raise pyfuse3.FUSEError(errno.EIO) from None

    def _path_of(self, inode: int) -> bytes:
        if inode < ROW:
            return self._names[inode - ROOT_INODE - 1]
        inner = self._looked_at.path(inode % ROW) if self._looked_at else b""
        return self._name(inode // ROW - 1) + (b"/" + inner if inner else b"")

    async def _file(self, inode: int) -> tuple[File, Row | None]:
        if ROOT_INODE < inode <= ROOT_INODE + len(self._names):
            return self._rows.files[self._names[inode - ROOT_INODE - 1]], None
        row = await self._row(self._number(inode))
        node = row.nodes[inode % ROW] if inode % ROW < len(row.nodes) else None
        if not isinstance(node, File):
            raise pyfuse3.FUSEError(errno.ESTALE if node is None else errno.EISDIR)
        return node, row

    # ------------------------------------------------------------ attributes

    def _root(self) -> pyfuse3.EntryAttributes:
        return self._common.make(ROOT_INODE, DIRECTORY, 2 + self._rows.n, BLOCK_SIZE, self._rows.mtime)

    def _row_folder(self, number: int) -> pyfuse3.EntryAttributes:
        return self._common.make((number + 1) * ROW, DIRECTORY, UNCOUNTED, BLOCK_SIZE, self._rows.mtime)

    def _beside(self, k: int) -> pyfuse3.EntryAttributes:
        """A file beside the rows."""
        return self._entry(ROOT_INODE + 1 + k, self._rows.files[self._names[k]])

    def _entry(self, inode: int, node: File | Folder) -> pyfuse3.EntryAttributes:
        if isinstance(node, File):
            return self._common.make(inode, FILE, 1, node.size, self._rows.mtime)
        return self._common.make(inode, DIRECTORY, 2 + node.folders, BLOCK_SIZE, self._rows.mtime)

    def _inner(self, number: int, row: Row, node: int) -> pyfuse3.EntryAttributes:
        """A node of a row, its folder included."""
        if node == 0:
            return self._row_folder(number)
        if node >= len(row.nodes):
            raise pyfuse3.FUSEError(errno.ESTALE)
        return self._entry((number + 1) * ROW + node, row.nodes[node])

    @answered
    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        """What stat(2) shows."""
        if inode == ROOT_INODE:
            return self._root()
        if inode <= ROOT_INODE + len(self._names):
            return self._beside(inode - ROOT_INODE - 1)
        number = self._number(inode)
        if inode % ROW == 0:  # nobody has to look into it for that
            return self._row_folder(number)
        return self._inner(number, await self._row(number), inode % ROW)

    @answered
    async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        """Of what comes from one record: its number, checksum, source, and whether it was verified."""
        return self._common.value_of(inode, await self._record(inode), name)

    @answered
    async def listxattr(self, inode: int, ctx: pyfuse3.RequestContext) -> Sequence[bytes]:
        """The names of the above."""
        return self._common.names_of(inode, await self._record(inode))

    async def _record(self, inode: int) -> int | None:
        if inode == ROOT_INODE:
            return None
        if inode >= ROW and inode % ROW == 0:
            return self._rows.record(self._number(inode))
        try:
            file, _ = await self._file(inode)
        except pyfuse3.FUSEError as error:
            if error.errno != errno.EISDIR:
                raise
            return None
        return file.record if file.record >= 0 else self._rows.record(self._number(inode))

    @answered
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        """A full file system. Of what is in the rows, nobody knows how many they are."""
        return self._common.make_file_system(1 + self._rows.n + len(self._names))

    # ------------------------------------------------------------ names

    @answered
    async def lookup(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        """What a name leads to."""
        if len(name) > NAME_MAX:
            raise pyfuse3.FUSEError(errno.ENAMETOOLONG)
        if parent_inode == ROOT_INODE:
            return self._lookup_root(name)
        number = self._number(parent_inode)
        if parent_inode % ROW == 0 and name in (b".", b".."):
            return self._row_folder(number) if name == b"." else self._root()
        row, node = await self._row(number), parent_inode % ROW
        parent = row.nodes[node] if node < len(row.nodes) else None
        if name == b".":
            return self._inner(number, row, node)
        if parent is None or not isinstance(parent, Folder):
            raise pyfuse3.FUSEError(errno.ESTALE if parent is None else errno.ENOTDIR)
        if name == b"..":
            return self._inner(number, row, row.parents[node])
        child = parent.nodes.get(name)
        return self._common.absent if child is None else self._inner(number, row, child)

    def _lookup_root(self, name: bytes) -> pyfuse3.EntryAttributes:
        if name in (b".", b".."):
            return self._root()
        if name in self._rows.files:
            return self._beside(self._names.index(name))
        if len(name) == self._digits and name.isdigit() and int(name) < self._rows.n:
            return self._row_folder(int(name))
        return self._common.absent

    @answered
    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        """``.`` is at offset 0, ``..`` at 1, the k-th name at k + 2, always. With each goes the offset after it."""
        if fh == ROOT_INODE:
            entries = self._list_root(start_id)
        else:
            number = self._number(fh)
            entries = self._list_row(number, await self._row(number), fh % ROW, start_id)
        for position, (name, entry) in enumerate(entries, start_id + 1):
            if not pyfuse3.readdir_reply(token, name, entry, position):
                return

    def _list_root(self, start: int) -> Iterator[tuple[bytes, pyfuse3.EntryAttributes]]:
        for name in (b".", b"..")[start:]:
            yield name, self._root()
        skip = max(start - 2, 0)
        for number in range(skip, self._rows.n):
            yield self._name(number), self._row_folder(number)
        for k in range(max(skip - self._rows.n, 0), len(self._names)):
            yield self._names[k], self._beside(k)

    def _list_row(
        self, number: int, row: Row, node: int, start: int
    ) -> Iterator[tuple[bytes, pyfuse3.EntryAttributes]]:
        folder = row.nodes[node] if node < len(row.nodes) else None
        if not isinstance(folder, Folder):
            raise pyfuse3.FUSEError(errno.ESTALE if folder is None else errno.ENOTDIR)
        if start < 1:
            yield b".", self._inner(number, row, node)
        if start < 2:
            yield b"..", self._root() if node == 0 else self._inner(number, row, row.parents[node])
        first = next(iter(folder.nodes.values()), 0)  # they follow one another
        for child in range(first + max(start - 2, 0), first + len(folder.nodes)):
            yield row.names[child], self._inner(number, row, child)

    # ------------------------------------------------------------ reading

    @answered
    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        """Refuses what cannot be read: of a file without bytes, the kernel would not ask for any."""
        info = await super().open(inode, flags, ctx)
        file, row = await self._file(inode)
        if file.problem:
            self._fail(inode, file.record, RecordError(file.problem), row)
        return info

    @answered
    async def read(self, fh: int, off: int, size: int) -> bytes:
        """Verified bytes."""
        file, row = await self._file(fh)
        try:
            return await self._ranges.read_file(file, off, size)
        except (RecordError, ReadError, SourceChangedError) as error:
            self._fail(fh, file.record, error, row)
