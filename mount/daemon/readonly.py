"""Keeps a mount read-only: when an administrator remounts it as writable, remounts it as read-only.

The kernel refuses to open files of a read-only mount for writing. The daemon cannot refuse that: it has told the kernel
not to ask when files are opened, which makes re-reads fast.
"""

from __future__ import annotations

import errno
import logging
import os
import select

import trio

from fffs.base.asynchronous import abandoning
from fffs.base.descriptors import is_lack_of_threads
from fffs.errors import MountError
from fffs.mount.system import kernel
from fffs.mount.system.mounts import mount_of, read_table

_log = logging.getLogger("fffs.mount")

# Remounting fails with this while a file is open for writing.
BUSY_SECONDS = 0.1
# Seconds between two looks at a table that changes constantly. A first change is looked at immediately.
PAUSE_SECONDS = 0.05
# Seconds between two looks while the system refuses to start the thread that waits for a change.
LOOK_SECONDS = 1.0


async def keep_read_only(path: str, table: int, device: str, noexec: bool) -> None:
    """Watch an open table of mounts until cancelled. ``device``: major:minor of the mount.

    All users contribute to that table, and the mount works without being watched: no error in here ends the daemon.
    """
    try:
        source = next((mount.source for mount in read_table(table, device)), "")
        await _watch(path, table, device, source, noexec)
    except (OSError, MountError) as error:  # a sandbox, too many open files, or no memory for the table
        _log.info("%s: cannot watch whether it is remounted as writable: %s", path, error)
    except Exception:
        _log.exception("%s: cannot watch whether it is remounted as writable", path)


async def _watch(path: str, table: int, device: str, source: str, noexec: bool) -> None:
    ended = os.eventfd(0, os.EFD_CLOEXEC)
    try:
        while True:
            while is_writable(table, device, source):
                if not await _undo(path, table, device, noexec):
                    return
            await trio.sleep(PAUSE_SECONDS)
            try:
                await trio.to_thread.run_sync(_wait, table, ended, **abandoning(True))
            except RuntimeError as error:
                if not is_lack_of_threads(error):
                    raise
                await trio.sleep(LOOK_SECONDS)
    finally:
        os.eventfd_write(ended, 1)
        os.close(ended)


def _wait(table: int, ended: int) -> None:
    """Wait in a thread until the table changes. With poll(2): the table reports a change once, and epoll asks twice."""
    poll = select.poll()
    poll.register(table, select.POLLPRI)
    poll.register(ended, select.POLLIN)
    poll.poll()


def is_writable(table: int, device: str, source: str) -> bool:
    """Whether the file system is writable, according to an open table of mounts.

    Mounts of other sources do not count: after an unmount, the kernel may give the number of the device to any new file
    system.
    """
    return any(mount.ours and mount.writable and mount.source == source for mount in read_table(table, device))


async def _undo(path: str, table: int, device: str, noexec: bool) -> bool:
    """Make the mount read-only again. Returns False if that will never be possible."""
    try:
        await trio.to_thread.run_sync(_remount, path, table, device, noexec)
    except (OSError, RuntimeError) as error:
        if is_lack_of_threads(error) or getattr(error, "errno", None) == errno.EBUSY:
            await trio.sleep(BUSY_SECONDS)
            return True
        if not isinstance(error, OSError):
            raise
        _log.warning("%s: remounted as writable by another process: opening for writing succeeds, writing fails", path)
        return False
    _log.warning("%s: remounted as writable by another process: it is read-only again", path)
    return True


def _remount(path: str, table: int, device: str, noexec: bool) -> None:
    """Remount through a descriptor: another file system may be mounted at the path by now."""
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW)
    try:
        mount = mount_of(fd, table)
        if mount is None or mount.device != device:
            raise FileNotFoundError(errno.ENOENT, "not there", path)
        kernel.remount_read_only(fd, noexec)
    finally:
        os.close(fd)
