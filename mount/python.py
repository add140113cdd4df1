"""mounted: a mount that lasts as long as a ``with`` block."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from typing import Any

from fffs.base.paths import PathLike
from fffs.errors import MountError, UsageError
from fffs.mount.daemon.background import KILL_SECONDS, spawn
from fffs.mount.daemon.job import Job, make_job
from fffs.mount.options import MountOptions
from fffs.mount.system import kernel
from fffs.mount.system.mountpoint import is_alive, is_dead, remove_left
from fffs.mount.system.mounts import Mount, mount_at

STOP_SECONDS = 30.0


@contextmanager
def mounted(
    sources: PathLike | Sequence[PathLike], mountpoint: PathLike | None = None, **options: Any
) -> Iterator[str]:
    """Mount, yield the path, and unmount at the end, lazily if files are open: reads from these then fail with
    ENOTCONN, and access to their mappings, as of ``numpy.load(mmap_mode="r")``, ends the program with SIGBUS.

    May be used from several threads at once. Each mount has its own daemon, which also unmounts when this process dies.
    Forked children may read the mount; they neither end it nor keep it alive.

    Args:
        sources: a packed folder or record file, a folder of parts, or several of these.
        mountpoint: the folder to mount on. A missing folder is created, and removed at the end. None: a new temporary
            folder.
        options: as in ``MountOptions``: ``verify=False``, ``suffix=".jpg"``, ...

    Raises:
        FffsError: mounting failed; or the daemon had ended before the end of the block.

    Examples:
        >>> with fffs.mount.mounted("photos.ffr") as folder:
        ...     sorted(os.listdir(folder))
        ['cat', 'dog']

    """
    if unknown := sorted(options.keys() - {field.name for field in fields(MountOptions)}):
        raise UsageError(f"mounted() has no option {', '.join(unknown)}; see fffs.mount.MountOptions")
    mount_options = MountOptions(**options)
    if mountpoint is None:
        with _temporary_folder() as folder:
            yield from _while_mounted(make_job(sources, folder, mount_options))
    else:
        yield from _while_mounted(make_job(sources, mountpoint, mount_options))


@contextmanager
def _temporary_folder() -> Iterator[str]:
    """Yield a new folder. Only the process that made it removes it, and only if it is empty: otherwise its content may
    be that of a mount.
    """
    folder, owner = tempfile.mkdtemp(prefix="fffs-"), os.getpid()
    try:
        yield folder
    finally:
        if os.getpid() == owner:
            with suppress(OSError):
                os.rmdir(folder)


def _while_mounted(job: Job) -> Iterator[str]:
    process, owner = spawn(job, lifeline=True), os.getpid()
    served = mount_at(job.mountpoint) if job.options.kernel else None
    try:
        yield job.mountpoint
    except BaseException:
        with suppress(MountError):
            _end(process, job.mountpoint, owner, served)
        raise
    _end(process, job.mountpoint, owner, served)


def _end(process: subprocess.Popen[bytes], path: str, owner: int, served: Mount | None) -> None:
    """End the daemon, and clean up if it cannot do that itself. Does nothing in a forked child: the mount belongs to
    the parent. served: the mount at its beginning, if the kernel may serve it.
    """
    assert process.stdin is not None
    if os.getpid() != owner:
        process.stdin.close()
        process.returncode = 0  # so that Popen does not wait for the parent's child
        return
    process.terminate()
    process.stdin.close()
    try:
        code = process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        try:
            code = process.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:  # in an uninterruptible call: the process ends when it returns
            code = -signal.SIGKILL
    # The code is 0, whatever happened, in a process that ignores SIGCHLD.
    if code != 0 or is_dead(path):
        mount = mount_at(path)
        # Another one may have been mounted there meanwhile. One that the kernel serves answers without its process.
        if mount and mount.ours and (not is_alive(path) or (mount.in_kernel and mount == served)):
            kernel.detach(mount, lazy=True)
        remove_left(path)
        how = f" (exit code {code})" if code else ""
        raise MountError(f"{path}: the daemon of this mount failed{how}; its log has the reason")
