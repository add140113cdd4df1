"""pyfuse3's operations over a View: translation only. A file handle is an inode number, and there is no other state.

All operations that change something fail. No exception except pyfuse3's own ends the event loop.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NoReturn, TypeVar

import pyfuse3

from fffs.errors import AccessError, ReadError, RecordError, SourceChangedError, SourceNotFoundError
from fffs.layouts.rows import FileContent
from fffs.layouts.view import NodeError, NotDecoded, View
from fffs.mount.fs import answers
from fffs.mount.fs.attributes import Presenter
from fffs.mount.fs.failed_reads import Failures
from fffs.mount.fs.reading import Reading
from fffs.mount.fs.statistics import COUNTED, Statistics
from fffs.mount.options import MountOptions
from fffs.tree.tree import NAME_MAX

_log = logging.getLogger("fffs.mount")

_Method = TypeVar("_Method", bound=Callable[..., Awaitable[Any]])

BAD = (RecordError, ReadError, AccessError, SourceChangedError, SourceNotFoundError, MemoryError)


def answered(method: _Method) -> _Method:
    """Count a request, and always reply to it: any exception except FUSEError would end pyfuse3's main loop.

    If the view must decode an item first, the method is called again: before it raises NotDecoded, it has no effect.
    """
    name = method.__name__
    counted = name in COUNTED

    @functools.wraps(method)
    async def answer(self: Operations, *args: Any) -> Any:
        if counted:
            self.statistics.requests[name] += 1
        if name in self.unsupported:
            raise pyfuse3.FUSEError(errno.ENOSYS)
        try:
            while True:
                try:
                    return await method(self, *args)
                except NotDecoded as missing:
                    await self._decode(missing)
        except pyfuse3.FUSEError:
            raise
        except NodeError as error:
            raise pyfuse3.FUSEError(error.number) from None
        except Exception:
            _log.exception("unexpected error in %s%r", name, args)
            raise pyfuse3.FUSEError(errno.EIO) from None

    return answer  # type: ignore[return-value]


class Operations(pyfuse3.Operations):
    """The file system. Used by the thread of the event loop. The caller closes the view."""

    def __init__(self, view: View, options: MountOptions, statistics: Statistics | None = None) -> None:
        self._view, self._reading = view, Reading(view)
        self._presenter = Presenter(view, options)
        self.failures = Failures(view.path)
        self.statistics = statistics or Statistics(view)
        self._answers = answers.Answers(view, self._presenter, self.statistics, self.failures)
        # After ENOSYS, the kernel asks for no more of them; ls -l would ask for several of each file.
        self.unsupported = () if options.xattr else ("getxattr", "listxattr")

    async def _decode(self, missing: NotDecoded) -> None:
        """Decode an item. EIO if its record cannot be read."""
        try:
            await self._reading.decode(missing)
        except BAD as error:
            self._fail(missing.inode, missing.record, error)

    def _fail(self, inode: int, record: int, error: Exception) -> NoReturn:
        self.failures.add(inode, record, error)
        raise pyfuse3.FUSEError(errno.EIO) from None

    def _entry(self, inode: int) -> pyfuse3.EntryAttributes:
        if inode >= answers.FIRST:
            return self._answers.attributes(inode)
        return self._presenter.entry(inode, self._view.attributes(inode))

    def _file(self, inode: int) -> FileContent:
        """Return where the bytes of a file are. EIO if it cannot be decoded."""
        file = self._view.file(inode)
        if file.problem:
            self._fail(inode, file.record, RecordError(file.problem))
        return file

    @answered
    async def lookup(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        """Return the attributes of a name in a folder."""
        if len(name) > NAME_MAX:
            return await self._answers.lookup(parent_inode, name)
        inode = self._view.lookup(parent_inode, name)
        entry = self._presenter.absent if inode is None else self._entry(inode)
        self.statistics.requests["lookup"] += 1
        return entry

    @answered
    async def readlink(self, inode: int, ctx: pyfuse3.RequestContext) -> bytes:
        """Return the target of a symbolic link."""
        return self._view.target(inode)

    @answered
    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        """Return the inode: readdir needs nothing else."""
        return inode

    @answered
    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        """List a folder. Entry k is always at offset k, and is returned with the offset of the next one."""
        attributes, present, reply = self._view.attributes, self._presenter.entry, pyfuse3.readdir_reply
        for position, (name, inode) in enumerate(self._view.entries(fh, start_id), start_id + 1):
            try:
                entry = present(inode, attributes(inode))
            except NotDecoded:
                if position > start_id + 1:
                    return  # the kernel then lists from this entry on
                raise
            if not reply(token, name, entry, position):
                return

    @answered
    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        """Return what stat(2) shows."""
        return self._entry(inode)

    @answered
    async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        """Return an extended attribute: record number, checksum, source, verified."""
        return self._presenter.value(inode, self._view.record(inode), name)

    @answered
    async def listxattr(self, inode: int, ctx: pyfuse3.RequestContext) -> Sequence[bytes]:
        """Return the names of the extended attributes."""
        return self._presenter.names(inode, self._view.record(inode))

    @answered
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        """Return what statfs(2) shows."""
        return self._presenter.file_system()

    @answered
    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        """Refuse files that cannot be decoded: if the size is 0, the kernel sends no read. Cached pages stay valid."""
        if flags & os.O_ACCMODE != os.O_RDONLY or flags & os.O_TRUNC:
            raise pyfuse3.FUSEError(errno.EROFS)
        if inode < answers.FIRST:
            self._file(inode)
        return pyfuse3.FileInfo(fh=inode, keep_cache=True)

    @answered
    async def read(self, fh: int, off: int, size: int) -> bytes:
        """Return verified bytes."""
        if fh >= answers.FIRST:
            return self._answers.read(fh, off, size)
        file = self._file(fh)
        began, count = time.perf_counter_ns(), 0
        try:
            data = await self._reading.read(file, off, size)
            count = len(data)
            return data  # type: ignore[no-any-return] # pyfuse3 takes any buffer
        except BAD as error:
            self._fail(fh, file.record, error)
        finally:
            self.statistics.count_read(began, count)

    @answered
    async def flush(self, fh: int) -> None:
        """Fail with ENOSYS, after which the kernel sends no more of these: nothing is ever written."""
        raise pyfuse3.FUSEError(errno.ENOSYS)

    async def release(self, fh: int) -> None:
        """Do nothing: an open file has no state. Also used for ``releasedir``."""

    releasedir = release

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        """Do nothing: inode numbers have no state."""


async def _refuse(*_: Any) -> NoReturn:
    raise pyfuse3.FUSEError(errno.EROFS)


# The mount is read-only, so the kernel sends none of these, unless an administrator remounts it as writable.
for _change in (
    "setattr", "mknod", "mkdir", "create", "symlink", "link", "unlink", "rmdir", "rename", "write",
    "setxattr", "removexattr",
):  # fmt: skip
    setattr(Operations, _change, _refuse)
