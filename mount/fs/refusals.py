"""What all mounts answer alike: nothing can be changed, nothing is remembered, and no exception ends the event loop."""

from __future__ import annotations

import errno
import functools
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NoReturn, TypeVar

import pyfuse3

from fffs.mount.fs.failures import Failures

_log = logging.getLogger("fffs.mount")

_Method = TypeVar("_Method", bound=Callable[..., Awaitable[Any]])


def answered(method: _Method) -> _Method:
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


def read_only() -> NoReturn:
    """Refuse a change."""
    raise pyfuse3.FUSEError(errno.EROFS)


class ReadOnlyOperations(pyfuse3.Operations):
    """A file system that nobody can change. What is in it is its subclass's to say."""

    failures: Failures

    @answered
    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        """The inode is all that readdir needs."""
        return inode

    @answered
    async def releasedir(self, fh: int) -> None:
        """Nothing was kept."""

    @answered
    async def access(self, inode: int, mode: int, ctx: pyfuse3.RequestContext) -> bool:
        """Not called: with ``default_permissions`` the kernel decides by the modes."""
        if mode & os.W_OK:
            read_only()
        return True

    @answered
    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        """The inode is all that read needs; pages stay cached after the file is closed."""
        if flags & os.O_ACCMODE != os.O_RDONLY or flags & os.O_TRUNC:
            read_only()
        return pyfuse3.FileInfo(fh=inode, keep_cache=True)

    @answered
    async def release(self, fh: int) -> None:
        """Nothing was kept."""

    @answered
    async def flush(self, fh: int) -> None:
        """ENOSYS: nothing is ever written, and the kernel need not ask again."""
        raise pyfuse3.FUSEError(errno.ENOSYS)

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        """Nothing was remembered."""

    # ------------------------------------------------------------ everything else is refused

    # The mount is read-only, so the kernel asks for none of these; they hold if somebody remounts it as writable.

    async def setattr(self, *_: Any) -> pyfuse3.EntryAttributes:
        """Refused."""
        read_only()

    async def mknod(self, *_: Any) -> pyfuse3.EntryAttributes:
        """Refused."""
        read_only()

    async def mkdir(self, *_: Any) -> pyfuse3.EntryAttributes:
        """Refused."""
        read_only()

    async def create(self, *_: Any) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        """Refused."""
        read_only()

    async def symlink(self, *_: Any) -> pyfuse3.EntryAttributes:
        """Refused."""
        read_only()

    async def link(self, *_: Any) -> pyfuse3.EntryAttributes:
        """Refused."""
        read_only()

    async def unlink(self, *_: Any) -> None:
        """Refused."""
        read_only()

    async def rmdir(self, *_: Any) -> None:
        """Refused."""
        read_only()

    async def rename(self, *_: Any) -> None:
        """Refused."""
        read_only()

    async def write(self, *_: Any) -> int:
        """Refused."""
        read_only()

    async def setxattr(self, *_: Any) -> None:
        """Refused."""
        read_only()

    async def removexattr(self, *_: Any) -> None:
        """Refused."""
        read_only()
