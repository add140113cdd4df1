"""Finds and detaches the daemon's own mount, which may have been moved, bound elsewhere or covered."""

from __future__ import annotations

import logging
import os
import select

from fffs.base.descriptors import duplicate
from fffs.errors import MountError
from fffs.mount.system import kernel
from fffs.mount.system.mounts import Mount, mount_at, mounts

_log = logging.getLogger("fffs.mount")


class Place:
    """The mount that was just made at a path. Thread-safe.

    It keeps no descriptor inside the mount, which would make every unmount but a lazy one fail.
    """

    def __init__(self, path: str, fuse: int, table: int) -> None:
        """fuse: the connection to the kernel, which is kept open. Raises OSError."""
        self._path, self._table = path, table
        mount = mount_at(path, table)
        self.device = mount.device if mount else ""
        self._fuse = duplicate(fuse)

    def close(self) -> None:
        """Close the connection. May be called again."""
        if self._fuse >= 0:
            os.close(self._fuse)
            self._fuse = -1

    def is_mounted(self) -> bool:
        """Whether it is mounted anywhere."""
        return bool(self._find())

    def detach(self, lazy: bool) -> bool:
        """Unmount it wherever it is. Returns False if a mount of it is left; the log says where.

        Raises:
            BusyError: it is in use, and ``lazy`` is False.

        """
        complete = True
        for mount in reversed(self._find()):  # a mount over another one comes after it
            try:
                self._detach(mount, lazy)
            except kernel.BusyError:
                raise
            except MountError as error:
                _log.error("%s", error)
                complete = False
        return complete

    def _detach(self, mount: Mount, lazy: bool) -> None:
        top = mount_at(mount.path, self._table)
        if top and top.number != mount.number:
            raise MountError(
                f"{mount.path}: it is still mounted there, below {top.source} ({top.type}); "
                f"unmount that, and then: fffs umount {mount.path}"
            )
        kernel.detach(mount.path, lazy=lazy, table=self._table)

    def _find(self) -> list[Mount]:
        """Return all mounts of the file system. Its device number is unique while its connection exists.

        Later another file system may have the number. Then only the mount at our path counts, which may be ours and
        dead.
        """
        found = mounts(self._table, self.device)
        if self._is_connected():
            return found
        top = mount_at(self._path, self._table)
        return [top] if top and top.device == self.device else []

    def _is_connected(self) -> bool:
        poll = select.poll()
        poll.register(self._fuse, 0)
        return not poll.poll(0)
