"""Finds and detaches the daemon's own mount, which may have been moved, bound elsewhere or covered."""

from __future__ import annotations

import logging
import os
import select

from fffs.base.descriptors import duplicate
from fffs.errors import MountError
from fffs.mount.system import kernel
from fffs.mount.system.mountpoint import is_dead
from fffs.mount.system.mounts import TYPE, Mount, cover_of, mount_at, mounts

_log = logging.getLogger("fffs.mount")


class Place:
    """The mount that was just made at a path. Thread-safe.

    It keeps no descriptor inside the mount, which would make every unmount but a lazy one fail.
    """

    def __init__(self, path: str, source: str, fuse: int, table: int) -> None:
        """fuse: the connection to the kernel, which is kept open.

        Raises:
            OSError: the system lacks something. Nothing is mounted.
            MountError: the mount is not at the path, because others moved a folder above it.

        """
        self._path, self._table = path, table
        try:
            self.device = _device(fuse) or _device_at(path, source, table)
        except BaseException:
            kernel.detach_topmost(path, lazy=True)  # the table cannot be read
            raise
        if not self.device:
            raise MountError(
                f"{path}: others moved a folder above it meanwhile, and the mount is dead; "
                f"findmnt -t {TYPE} shows where it is: fffs umount it"
            )
        self._fuse = fuse
        try:
            self._fuse = duplicate(fuse)
        except BaseException:
            self.detach(lazy=True)
            raise

    def close(self) -> None:
        """Close the connection. May be called again."""
        if self._fuse >= 0:
            os.close(self._fuse)
            self._fuse = -1

    def is_mounted(self) -> bool:
        """Whether it is mounted anywhere."""
        return bool(self._find())

    def detach(self, lazy: bool) -> list[Mount]:
        """Unmount it wherever it is. Returns the mounts of it that are left; the log says why.

        Raises:
            BusyError: it is in use, and ``lazy`` is False.

        """
        failed: set[str] = set()
        # Unmounting one may unmount others, too: if their folder is bound elsewhere as shared.
        while mount := self._find_reachable(failed):
            try:
                kernel.detach(mount, lazy=lazy, table=self._table)
            except kernel.BusyError:
                raise
            except MountError as error:
                _log.error("%s", error)
                failed.add(mount.number)
        left = self._find()
        for mount in left:
            if cover := cover_of(mount, self._table):
                _log.error("%s", kernel.describe_cover(mount, cover))
        return left

    def _find_reachable(self, failed: set[str]) -> Mount | None:
        """Return a mount that no other one hides, and whose number is not in ``failed``."""
        found = (mount for mount in reversed(self._find()) if mount.number not in failed)
        return next((mount for mount in found if not cover_of(mount, self._table)), None)

    def _find(self) -> list[Mount]:
        """Return all mounts of the file system. Its device number is unique while its connection exists.

        Later another file system may have the number, and even the mount its number. Then only a mount at our path
        counts, if it is dead.
        """
        found = mounts(self._table, self.device)
        if self._is_connected():
            return found
        top = mount_at(self._path, self._table)
        return [top] if top and top.device == self.device and is_dead(self._path) else []

    def _is_connected(self) -> bool:
        poll = select.poll()
        poll.register(self._fuse, 0)
        return not poll.poll(0)


def _device(fuse: int) -> str:
    """Return the device of the file system that a connection serves, or an empty string if the kernel does not tell.

    The mount itself may be covered already, if two processes mount at the same time.
    """
    try:
        with open(f"/proc/thread-self/fdinfo/{fuse}", "rb") as lines:
            numbers = [line.split()[1].decode() for line in lines if line.startswith(b"fuse_connection:")]
    except OSError:
        return ""
    return f"0:{numbers[0]}" if numbers else ""


def _device_at(path: str, source: str, table: int) -> str:
    """As ``_device``, by the path, which leads to another mount if somebody moved a folder above it."""
    mount = mount_at(path, table)
    return mount.device if mount and (mount.type, mount.source) == (TYPE, source) else ""
