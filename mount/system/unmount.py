"""Unmounts from another process: ``fffs umount``. Also removes what a dead daemon left."""

from __future__ import annotations

import errno
import logging
import os
import select

from fffs.base.descriptors import is_lack_of_threads, process_file
from fffs.base.paths import PathLike
from fffs.errors import MountError
from fffs.mount.system import kernel
from fffs.mount.system.mountpoint import remove_left
from fffs.mount.system.mounts import Mount, canonical, cover_of, mount_at, mounts
from fffs.mount.system.questions import DAEMON, ask

_log = logging.getLogger("fffs.mount")

# A daemon that is stopped or stuck does not tell its process id; unmounting does not depend on that.
ASK_SECONDS = 5.0
EXIT_SECONDS = 10.0


def umount(mountpoint: PathLike, lazy: bool = False) -> None:
    """Unmount, and wait until the daemon has ended: then its files are closed, and it has removed a mount point that it
    created.

    If the same file system is also mounted elsewhere (``mount --bind``), the daemon continues and a warning says so.

    Example: ``fffs.mount.mount``.

    Args:
        mountpoint: the mount point; its daemon may be dead.
        lazy: if the mount is in use, detach it at once and do not wait: the daemon ends when the last file is closed.

    Raises:
        MountError: nothing is mounted there, or not by fffs, or it is in use, or its daemon does not answer.

    """
    path = canonical(mountpoint)
    mount = mount_at(path)
    if mount is None:
        raise MountError(_describe_absence(path))
    if not mount.ours:
        raise MountError(f"{path}: not a mount of fffs but of type {mount.type}; use umount(8)")
    answer = _ask(path)
    try:
        daemon = _daemon(answer)
    except ConnectionError:
        kernel.detach(mount, lazy=True)  # dead: files that are still open cannot be used
        remove_left(path)
        return
    # Before unmounting, while no other file system can have its device number.
    others = {other for other in mounts(device=mount.device) if other.number != mount.number}
    try:
        in_use = _detach(mount, lazy, answers=answer is not None)
        # If their folder is bound elsewhere as shared, unmounting one unmounts the others.
        if left := [other.path for other in mounts(device=mount.device) if other in others]:
            _log.warning("%s: unmounted, but it is also mounted at %s: fffs umount %s", path, left[-1], left[-1])
        elif not in_use and daemon is not None and not _wait(daemon):
            # Another mount namespace (a container started meanwhile, `unshare --mount`) has a copy of the mount.
            _log.warning(
                "%s: unmounted, but its daemon has not ended: a container may still have the mount, or a disk does not "
                "answer",
                path,
            )
        remove_left(path)  # that of a daemon which was killed meanwhile
    finally:
        if daemon is not None:
            os.close(daemon)


def _ask(path: str) -> bytes | OSError | None:
    """Ask for the daemon. Unmounting does not need the answer, so it works where no thread can be started to wait."""
    try:
        return ask(path, DAEMON, ASK_SECONDS)
    except RuntimeError as error:
        if not is_lack_of_threads(error):
            raise
        return b""


def _describe_absence(path: str) -> str:
    """Return an error message: why there is nothing to unmount."""
    for mount in mounts():
        if mount.path == path and mount.ours and (cover := cover_of(mount)):
            return kernel.describe_cover(mount, cover)
    return f"{path}: " + ("nothing is mounted there" if os.path.lexists(path) else "no such folder")


def _detach(mount: Mount, lazy: bool, answers: bool) -> bool:
    """Unmount. Returns whether it was in use and therefore detached lazily. answers: whether its daemon answers."""
    path = mount.path
    try:
        kernel.detach(mount)
    except kernel.BusyError:
        if not lazy:
            lazily = f"fffs umount --lazy {path}"
            if answers:
                why = f"in use; close what is open in it (fuser -vm {path} lists it), or: {lazily}"
            else:  # every request to such a mount makes it busy, ours and those of fuser
                why = f"its daemon does not answer: it is stopped, or its disk is; detach it with: {lazily}"
            raise MountError(f"{path}: {why}") from None
        kernel.detach(mount, lazy=True)
        return True
    return False


def _daemon(answer: bytes | OSError | None) -> int | None:
    """Return a pidfd of the process that serves a mount, from its answer; None if it cannot be determined.

    Raises ConnectionError if the process has ended.
    """
    if isinstance(answer, OSError) and answer.errno in (errno.ENOTCONN, errno.ECONNABORTED):
        raise ConnectionError from answer
    if answer is None or isinstance(answer, OSError):
        return None
    try:
        pid, namespace = map(int, answer.split())
        if os.stat("/proc/self/ns/pid").st_ino != namespace:
            return None  # in this namespace the number is that of another process
        return process_file(pid)
    # It has ended, or /proc or descriptors are missing; or the answer is no number, or none of a process.
    except (OSError, ValueError, OverflowError):
        return None


def _wait(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)  # readable once the process has ended
    return bool(poll.poll(EXIT_SECONDS * 1000))
