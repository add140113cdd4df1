"""A mount for the length of a ``with`` statement."""

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
from fffs.mount.system.mountpoint import remove_left
from fffs.mount.system.mounts import mount_at

STOP_SECONDS = 30.0


@contextmanager
def mounted(
    sources: PathLike | Sequence[PathLike], mountpoint: PathLike | None = None, **options: Any
) -> Iterator[str]:
    """Mount, give the path, and unmount at the end: lazily if something is still open.

    May be used from any thread, any number of times at once: each mount has a daemon of its own, which also unmounts
    when this process dies. Children of fork may read what is mounted; none of them ends it or keeps it alive.

    Args:
        sources: a packed folder or record file, a folder of parts, or several of these.
        mountpoint: where; made when missing, and removed then. None: a new temporary folder.
        options: as in ``MountOptions``: ``verify=False``, ``suffix=".jpg"``, ...

    Raises:
        FffsError: it cannot be mounted; or, at the end, the daemon did not live to see it.

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
    """Removed only by who made it, and only when it is empty: whatever is in it is what is mounted there."""
    folder, owner = tempfile.mkdtemp(prefix="fffs-"), os.getpid()
    try:
        yield folder
    finally:
        if os.getpid() == owner:
            with suppress(OSError):
                os.rmdir(folder)


def _while_mounted(job: Job) -> Iterator[str]:
    process, owner = spawn(job, lifeline=True), os.getpid()
    try:
        yield job.mountpoint
    except BaseException:
        with suppress(MountError):
            _end(process, job.mountpoint, owner)
        raise
    _end(process, job.mountpoint, owner)


def _end(process: subprocess.Popen[bytes], path: str, owner: int) -> None:
    """End the daemon, and clean up after it if it cannot do that itself. Not in a child of fork: the mount is its
    parent's.
    """
    assert process.stdin is not None
    if os.getpid() != owner:
        process.stdin.close()
        process.returncode = 0  # nothing is waited for
        return
    process.terminate()
    process.stdin.close()
    try:
        code = process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        try:
            code = process.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:  # in a call that nothing interrupts: the kernel ends it when that returns
            code = -signal.SIGKILL
    mount = mount_at(path)
    if mount and mount.ours and code != 0:
        kernel.detach(path, lazy=True)
    if code != 0:
        remove_left(path)
        raise MountError(f"{path}: the daemon of this mount did not end well (exit code {code})")
