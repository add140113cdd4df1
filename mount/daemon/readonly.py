"""A mount that stays read-only: when somebody remounts it as writable, it is remounted as read-only.

The kernel refuses to open a file for writing by what the mount is, before it asks anybody. Once it has been told not to
ask about opening at all, which is what makes re-reads fast, nothing else can refuse that.
"""

from __future__ import annotations

import errno
import logging
import os
import select

import trio

from fffs.errors import MountError
from fffs.mount.system import kernel
from fffs.mount.system.mounts import mount_of, read_table

_log = logging.getLogger("fffs.mount")

# While a file is open for writing, which it was before anybody could do anything about it.
BUSY_SECONDS = 0.1
# How often the table is looked at while others mount and unmount all the time. The first change is looked at at once.
PAUSE_SECONDS = 0.05


async def keep_read_only(path: str, table: int, device: str, noexec: bool) -> None:
    """Watch an open table of mounts, until cancelled or until it may not be done. ``device``: major:minor of the mount.

    Others make that table, and the mount works without anybody who watches it: nothing that happens here ends it.
    """
    try:
        await _watch(path, table, device, noexec)
    except (OSError, MountError) as error:  # a sandbox, too many open files, or no memory for the table
        _log.info("%s: nobody will notice when it is made writable: %s", path, error)
    except Exception:
        _log.exception("%s: nobody will notice when it is made writable", path)


async def _watch(path: str, table: int, device: str, noexec: bool) -> None:
    ended = os.eventfd(0, os.EFD_CLOEXEC)
    try:
        while True:
            while is_writable(table, device):
                if not await _undo(path, table, device, noexec):
                    return
            await trio.sleep(PAUSE_SECONDS)
            await trio.to_thread.run_sync(_wait, table, ended, abandon_on_cancel=True)
    finally:
        os.eventfd_write(ended, 1)
        os.close(ended)


def _wait(table: int, ended: int) -> None:
    """Until the table changes. In a thread, with poll(2): epoll asks twice, and the table tells of a change once."""
    poll = select.poll()
    poll.register(table, select.POLLPRI)
    poll.register(ended, select.POLLIN)
    poll.poll()


def is_writable(table: int, device: str) -> bool:
    """Whether the file system is, by an open table of mounts."""
    return any(mount.writable for mount in read_table(table, device))


async def _undo(path: str, table: int, device: str, noexec: bool) -> bool:
    """False: it cannot be undone."""
    try:
        await trio.to_thread.run_sync(_remount, path, table, device, noexec)
    except OSError as error:
        if error.errno == errno.EBUSY:
            await trio.sleep(BUSY_SECONDS)
            return True
        _log.warning("%s: somebody made it writable: opening for writing succeeds, writing fails", path)
        return False
    _log.warning("%s: somebody made it writable: it is read-only again", path)
    return True


def _remount(path: str, table: int, device: str, noexec: bool) -> None:
    """Through a descriptor, so that it cannot be another file system that is mounted there by now."""
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW)
    try:
        mount = mount_of(fd, table)
        if mount is None or mount.device != device:
            raise FileNotFoundError(errno.ENOENT, "not there", path)
        kernel.remount_read_only(fd, noexec)
    finally:
        os.close(fd)
