"""pyfuse3's operations over a Tree and a RecordStore: translation only.

An inode is a node plus one, and so is a file handle.
"""

from __future__ import annotations

import errno
import functools
from collections.abc import Sequence

import pyfuse3

from fffs.errors import ReadError, RecordError, SourceChangedError
from fffs.layouts import Source
from fffs.mount.fs.attributes import Attributes
from fffs.mount.fs.failures import Failures, path_of
from fffs.mount.fs.ranges import Ranges
from fffs.mount.fs.refusals import ReadOnlyOperations, answered
from fffs.mount.options import MountOptions
from fffs.tree.tree import NAME_MAX


class Operations(ReadOnlyOperations):
    """The file system. Only for the thread that runs the event loop; ``source`` stays the caller's to close."""

    def __init__(self, source: Source, options: MountOptions) -> None:
        self._tree = source.tree
        self._attributes = Attributes(source, options)
        self._ranges = Ranges(source.store, options.verify)
        self._ref = memoryview(source.tree.ref)
        self.failures = Failures(functools.partial(path_of, source.tree))

    # ------------------------------------------------------------ names

    @answered
    async def lookup(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        """The node a name leads to. NFS servers, which remember nothing but inodes, ask for ``.`` and ``..``, too."""
        node: int | None = parent_inode - 1
        if name == b"..":
            node = int(self._tree.parent[parent_inode - 1])
        elif len(name) > NAME_MAX:
            raise pyfuse3.FUSEError(errno.ENAMETOOLONG)
        elif name != b".":
            node = self._tree.lookup(parent_inode - 1, name)
        return self._attributes.absent if node is None else await self.entry(node)

    @answered
    async def readlink(self, inode: int, ctx: pyfuse3.RequestContext) -> bytes:
        """What a symbolic link says."""
        return self._tree.target(inode - 1)

    @answered
    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        """``.`` is at offset 0, ``..`` at 1, the k-th name at k + 2, always. With each goes the offset after it."""
        tree, entry, reply = self._tree, self.entry, pyfuse3.readdir_reply
        node = fh - 1
        if start_id < 1 and not reply(token, b".", await entry(node), 1):
            return
        if start_id < 2 and not reply(token, b"..", await entry(int(tree.parent[node])), 2):
            return
        skip = max(start_id - 2, 0)
        for position, (name, child) in enumerate(tree.entries(node, skip), skip + 3):
            if not reply(token, name, await entry(child), position):
                return

    # ------------------------------------------------------------ attributes

    @answered
    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        """What stat(2) shows."""
        return await self.entry(inode - 1)

    async def entry(self, node: int) -> pyfuse3.EntryAttributes:
        """The same of a node."""
        return self._attributes.entry(node)

    @answered
    async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        """Record number, checksum, source, and whether it was verified."""
        return self._attributes.value(inode - 1, name)

    @answered
    async def listxattr(self, inode: int, ctx: pyfuse3.RequestContext) -> Sequence[bytes]:
        """The names of the above."""
        return self._attributes.names(inode - 1)

    @answered
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        """A full file system."""
        return self._attributes.file_system()

    # ------------------------------------------------------------ reading

    @answered
    async def read(self, fh: int, off: int, size: int) -> bytes:
        """Verified bytes."""
        node = fh - 1
        record = self._ref[node]
        try:
            return await self._ranges.read(record, off, size)  # type: ignore[return-value] # any buffer is accepted
        except (RecordError, ReadError, SourceChangedError) as error:
            self.failures.add(node, record, error)
            raise pyfuse3.FUSEError(errno.EIO) from None
