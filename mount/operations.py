"""pyfuse3's operations over a Tree and a RecordStore: translation only.

An inode is a node plus one, and so is a file handle.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt
import pyfuse3
import trio

from fffs.errors import ReadError, RecordError, SourceChangedError
from fffs.layouts import Source
from fffs.mount.attributes import Attributes
from fffs.mount.failures import Failures
from fffs.mount.options import MountOptions
from fffs.tree import NAME_MAX

_log = logging.getLogger("fffs.mount")

# Reads of one source file that may wait for its disk at a time: a file on a stalled disk leaves threads for the others.
WAITING_READS = 32
# The largest read the kernel sends: 256 pages, unless an administrator raised fs.fuse.max_pages_limit.
LARGEST_READ = 1 << 20

_Method = TypeVar("_Method", bound=Callable[..., Awaitable[Any]])


def _answered(method: _Method) -> _Method:
    """Any exception but a FUSEError would end pyfuse3's main loop: it becomes EIO, and a traceback in the log."""

    @functools.wraps(method)
    async def answer(*args: Any) -> Any:
        try:
            return await method(*args)
        except pyfuse3.FUSEError:
            raise
        except Exception:
            _log.exception("unexpected error in %s%r", method.__name__, args[1:])
            raise pyfuse3.FUSEError(errno.EIO) from None

    return answer  # type: ignore[return-value]


def _read_only() -> NoReturn:
    raise pyfuse3.FUSEError(errno.EROFS)


class Operations(pyfuse3.Operations):
    """The file system. Only for the thread that runs the event loop; ``source`` stays the caller's to close."""

    def __init__(self, source: Source, options: MountOptions) -> None:
        self._tree, self._store = source.tree, source.store
        self._attributes = Attributes(source, options)
        self._check = options.verify
        self._ref, self._count = memoryview(source.tree.ref), memoryview(source.tree.count)
        self._limiters = {file.fd: trio.CapacityLimiter(WAITING_READS) for file in source.store.files}
        self._buffer = np.empty(LARGEST_READ, np.uint8)
        self.failures = Failures(source.tree)

    # ------------------------------------------------------------ names

    @_answered
    async def lookup(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        """The node a name leads to. NFS servers, which remember nothing but inodes, ask for ``.`` and ``..``, too."""
        node: int | None = parent_inode - 1
        if name == b"..":
            node = int(self._tree.parent[parent_inode - 1])
        elif len(name) > NAME_MAX:
            raise pyfuse3.FUSEError(errno.ENAMETOOLONG)
        elif name != b".":
            node = self._tree.lookup(parent_inode - 1, name)
        return self._attributes.absent if node is None else self._attributes.entry(node)

    @_answered
    async def readlink(self, inode: int, ctx: pyfuse3.RequestContext) -> bytes:
        """What a symbolic link says."""
        return self._tree.target(inode - 1)

    @_answered
    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        """The inode is all that readdir needs."""
        return inode

    @_answered
    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        """``.`` is at offset 0, ``..`` at 1, the k-th name at k + 2, always. With each goes the offset after it."""
        tree, entry, reply = self._tree, self._attributes.entry, pyfuse3.readdir_reply
        node = fh - 1
        if start_id < 1 and not reply(token, b".", entry(node), 1):
            return
        if start_id < 2 and not reply(token, b"..", entry(int(tree.parent[node])), 2):
            return
        skip = max(start_id - 2, 0)
        for position, (name, child) in enumerate(tree.entries(node, skip), skip + 3):
            if not reply(token, name, entry(child), position):
                return

    @_answered
    async def releasedir(self, fh: int) -> None:
        """Nothing was kept."""

    # ------------------------------------------------------------ attributes

    @_answered
    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        """What stat(2) shows."""
        return self._attributes.entry(inode - 1)

    @_answered
    async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        """Record number, checksum, source, and whether it was verified."""
        return self._attributes.value(inode - 1, name)

    @_answered
    async def listxattr(self, inode: int, ctx: pyfuse3.RequestContext) -> Sequence[bytes]:
        """The names of the above."""
        return self._attributes.names(inode - 1)

    @_answered
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        """A full file system."""
        return self._attributes.file_system()

    @_answered
    async def access(self, inode: int, mode: int, ctx: pyfuse3.RequestContext) -> bool:
        """Not called: with ``default_permissions`` the kernel decides by the modes."""
        if mode & os.W_OK:
            _read_only()
        return True

    # ------------------------------------------------------------ reading

    @_answered
    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        """The inode is all that read needs; pages stay cached after the file is closed."""
        if flags & os.O_ACCMODE != os.O_RDONLY or flags & os.O_TRUNC:
            _read_only()
        return pyfuse3.FileInfo(fh=inode, keep_cache=True)

    @_answered
    async def read(self, fh: int, off: int, size: int) -> bytes:
        """Verified bytes. What is in the page cache is read right here; what is not waits in a thread."""
        node = fh - 1
        record = self._ref[node]
        try:
            return await self._read(record, off, size)  # type: ignore[return-value] # any buffer is accepted
        except (RecordError, ReadError, SourceChangedError) as error:
            self.failures.add(node, record, error)
            raise pyfuse3.FUSEError(errno.EIO) from None

    async def _read(self, record: int, start: int, size: int) -> npt.NDArray[np.uint8]:
        read = functools.partial(self._store.read_range_into, record, start, check=self._check)
        # One buffer serves all reads that do not wait: pyfuse3 has passed it on before the loop runs anything else.
        dest = self._buffer[:size] if size <= LARGEST_READ else np.empty(size, np.uint8)
        got = read(dest=dest, wait=False)
        if got is None:
            dest = np.empty(size, np.uint8)
            limiter = self._limiters[self._store.locate(record)[0].fd]
            got = await trio.to_thread.run_sync(functools.partial(read, dest=dest, wait=True), limiter=limiter)
        return dest[: got or 0]

    @_answered
    async def release(self, fh: int) -> None:
        """Nothing was kept."""

    @_answered
    async def flush(self, fh: int) -> None:
        """ENOSYS: nothing is ever written, and the kernel need not ask again."""
        raise pyfuse3.FUSEError(errno.ENOSYS)

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        """Nothing was remembered."""

    # ------------------------------------------------------------ everything else is refused

    # The mount is read-only, so the kernel asks for none of these; they hold if somebody remounts it as writable.

    async def setattr(self, *_: Any) -> pyfuse3.EntryAttributes:
        """Refused."""
        _read_only()

    async def mknod(self, *_: Any) -> pyfuse3.EntryAttributes:
        """Refused."""
        _read_only()

    async def mkdir(self, *_: Any) -> pyfuse3.EntryAttributes:
        """Refused."""
        _read_only()

    async def create(self, *_: Any) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        """Refused."""
        _read_only()

    async def symlink(self, *_: Any) -> pyfuse3.EntryAttributes:
        """Refused."""
        _read_only()

    async def link(self, *_: Any) -> pyfuse3.EntryAttributes:
        """Refused."""
        _read_only()

    async def unlink(self, *_: Any) -> None:
        """Refused."""
        _read_only()

    async def rmdir(self, *_: Any) -> None:
        """Refused."""
        _read_only()

    async def rename(self, *_: Any) -> None:
        """Refused."""
        _read_only()

    async def write(self, *_: Any) -> int:
        """Refused."""
        _read_only()

    async def setxattr(self, *_: Any) -> None:
        """Refused."""
        _read_only()

    async def removexattr(self, *_: Any) -> None:
        """Refused."""
        _read_only()
