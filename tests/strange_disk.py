"""A file system that shows a folder in a strange way, as some FUSE file systems do.

As a program: ``python strange_disk.py {changing|equal|caseless|listed} FOLDER MOUNTPOINT``. ``changing``: each lookup
gives another number. ``equal``: all numbers are the same, and files have two links. ``caseless``: names are in lower
case. ``listed``: a descriptor lists what there was when it was opened, as on Btrfs.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mounting
import pyfuse3
import trio

NUMBER = 7  # of every node with ``equal``


def _system(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return errors of system calls as errors of the file system."""

    @functools.wraps(method)
    async def answer(*arguments: Any) -> Any:
        try:
            return await method(*arguments)
        except OSError as error:
            raise pyfuse3.FUSEError(error.errno) from None

    return answer


class StrangeDisk(pyfuse3.Operations):
    """Nodes are paths; several numbers may refer to the same path."""

    enable_writeback_cache = False

    def __init__(self, kind: str, folder: str) -> None:
        super().__init__()
        self._kind = kind
        self._paths = {pyfuse3.ROOT_INODE: os.fsencode(folder)}
        self._fresh = itertools.count(100)
        self._numbers: dict[bytes, int] = {}
        self._listings: dict[int, tuple[int, list[bytes]]] = {}  # of open folders: their numbers, and their names

    def _child(self, parent: int, name: bytes) -> bytes:
        return os.path.join(self._paths[parent], name.lower() if self._kind == "caseless" else name)

    def _entry(self, path: bytes) -> Any:
        """Return the reply to a lookup, with the number for further requests."""
        attributes = self._attributes(path)
        number = next(self._fresh) if self._kind == "changing" else self._numbers.setdefault(path, next(self._fresh))
        self._paths[number] = path
        attributes.st_ino = number
        return attributes

    def _attributes(self, path: bytes) -> Any:
        status, attributes = os.lstat(path), pyfuse3.EntryAttributes()
        for name in ("mode", "nlink", "uid", "gid", "rdev", "size", "atime_ns", "mtime_ns", "ctime_ns"):
            setattr(attributes, f"st_{name}", getattr(status, f"st_{name}"))
        attributes.entry_timeout = attributes.attr_timeout = 0
        if self._kind == "equal":
            attributes.st_nlink = 2
            attributes.st_ctime_ns = attributes.st_mtime_ns
        return attributes

    @_system
    async def lookup(self, parent_inode: int, name: bytes, ctx: Any) -> Any:
        return self._entry(self._child(parent_inode, name))

    @_system
    async def getattr(self, inode: int, ctx: Any) -> Any:
        attributes = self._attributes(self._paths[inode])
        attributes.st_ino = NUMBER if self._kind == "equal" else inode
        return attributes

    @_system
    async def setattr(self, inode: int, attr: Any, fields: Any, fh: Any, ctx: Any) -> Any:
        path = self._paths[inode]
        if fields.update_mode:
            os.chmod(path, attr.st_mode & 0o7777)
        if fields.update_size:
            os.truncate(path, attr.st_size)
        if fields.update_mtime:
            os.utime(path, ns=(attr.st_mtime_ns, attr.st_mtime_ns), follow_symlinks=False)
        return await self.getattr(inode, ctx)

    @_system
    async def readlink(self, inode: int, ctx: Any) -> bytes:
        return os.readlink(self._paths[inode])

    @_system
    async def opendir(self, inode: int, ctx: Any) -> Any:
        number = next(self._fresh)
        self._listings[number] = inode, sorted(os.listdir(self._paths[inode]))
        return number

    @_system
    async def readdir(self, fh: int, start_id: int, token: Any) -> None:
        inode, names = self._listings[fh]
        if self._kind != "listed":
            names = sorted(os.listdir(self._paths[inode]))
        for position, name in enumerate(names[start_id:], start_id + 1):
            if not pyfuse3.readdir_reply(token, name, self._entry(self._child(inode, name)), position):
                return

    async def releasedir(self, fh: int) -> None:
        del self._listings[fh]

    @_system
    async def open(self, inode: int, flags: int, ctx: Any) -> Any:
        return pyfuse3.FileInfo(fh=os.open(self._paths[inode], flags & ~os.O_NOFOLLOW))

    @_system
    async def create(self, parent_inode: int, name: bytes, mode: int, flags: int, ctx: Any) -> Any:
        path = self._child(parent_inode, name)
        fd = os.open(path, flags | os.O_CREAT, mode)
        return pyfuse3.FileInfo(fh=fd), self._entry(path)

    @_system
    async def read(self, fh: int, off: int, size: int) -> bytes:
        return os.pread(fh, size, off)

    @_system
    async def write(self, fh: int, off: int, buf: bytes) -> int:
        return os.pwrite(fh, buf, off)

    @_system
    async def fsync(self, fh: int, datasync: bool) -> None:
        os.fsync(fh)

    async def fsyncdir(self, fh: int, datasync: bool) -> None:
        pass

    async def flush(self, fh: int) -> None:
        pass

    async def release(self, fh: int) -> None:
        os.close(fh)

    @_system
    async def mkdir(self, parent_inode: int, name: bytes, mode: int, ctx: Any) -> Any:
        os.mkdir(self._child(parent_inode, name), mode)
        return self._entry(self._child(parent_inode, name))

    @_system
    async def symlink(self, parent_inode: int, name: bytes, target: bytes, ctx: Any) -> Any:
        os.symlink(target, self._child(parent_inode, name))
        return self._entry(self._child(parent_inode, name))

    @_system
    async def link(self, inode: int, new_parent_inode: int, new_name: bytes, ctx: Any) -> Any:
        os.link(self._paths[inode], self._child(new_parent_inode, new_name), follow_symlinks=False)
        return self._entry(self._child(new_parent_inode, new_name))

    @_system
    async def unlink(self, parent_inode: int, name: bytes, ctx: Any) -> None:
        os.unlink(self._child(parent_inode, name))

    @_system
    async def rmdir(self, parent_inode: int, name: bytes, ctx: Any) -> None:
        os.rmdir(self._child(parent_inode, name))

    @_system
    async def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int, ctx: Any) -> None:
        old, new = self._child(parent, name), self._child(new_parent, new_name)
        os.rename(old, new)
        for number, path in self._paths.items():
            if path == old or path.startswith(old + b"/"):
                self._paths[number] = new + path[len(old) :]


def serve(kind: str, folder: str, mountpoint: str) -> None:
    pyfuse3.init(StrangeDisk(kind, folder), mountpoint, {*pyfuse3.default_options, "fsname=strange"})
    print("ready", flush=True)
    try:
        trio.run(pyfuse3.main)
    finally:
        pyfuse3.close(unmount=False)


@contextlib.contextmanager
def strange_disk(kind: str, folder: Path, mountpoint: Path) -> Iterator[Path]:
    """Mount such a file system on a new folder for the duration of the block."""
    mountpoint.mkdir()
    command = [sys.executable, __file__, kind, str(folder), str(mountpoint)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            assert process.stdout.readline() == "ready\n"
            yield mountpoint
        finally:
            mounting.umount_quietly(mountpoint)
            if process.poll() is None:
                process.terminate()


if __name__ == "__main__":
    serve(*sys.argv[1:])
