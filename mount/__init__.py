"""The mount: packed folders and record files as a read-only file system, through pyfuse3.

``mounted`` is for Python programs; ``mount`` and ``umount`` work as on the command line. Only the daemon's process
needs pyfuse3 and libfuse.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from fffs.base.importing import importing
from fffs.base.jobs import Progress
from fffs.base.paths import PathLike
from fffs.errors import UsageError
from fffs.mount.daemon.background import start
from fffs.mount.daemon.job import make_job
from fffs.mount.helper import helper
from fffs.mount.options import MountOptions
from fffs.mount.python import mounted
from fffs.mount.system.unmount import umount

__all__ = ["MountOptions", "helper", "mount", "mounted", "umount"]


def mount(
    sources: PathLike | Sequence[PathLike],
    mountpoint: PathLike,
    *,
    options: MountOptions = MountOptions(),  # noqa: B008 - immutable
    foreground: bool = False,
    debug: bool = False,
    progress: Progress | None = None,
) -> None:
    """Mount sources as one tree, until it is unmounted.

    Args:
        sources: a packed folder or record file, a folder of parts, or several of these.
        mountpoint: the folder to mount on. A missing folder is created, and removed when the daemon ends.
        options: see ``MountOptions``.
        foreground: make this process the daemon, and return when it is unmounted. It gets a daemon's log, signal
            handlers and hooks for exceptions and warnings, and keeps them, so this is for programs that only mount;
            others use ``mounted``. Possible in the main thread only, and once per process. Otherwise a daemon is
            started, and this returns when the mount answers.
        debug: log every request.
        progress: called with (bytes verified, total bytes), for ``kernel``.

    Raises:
        FffsError: mounting failed, and nothing is mounted.

    Examples:
        >>> fffs.mount.mount("photos.ffr", "mnt", options=fffs.mount.MountOptions(umask=0o77))
        >>> sorted(os.listdir("mnt"))
        ['cat', 'dog']
        >>> fffs.mount.umount("mnt")

    """
    job = make_job(sources, mountpoint, options, debug)
    if foreground:
        if options.kernel:
            raise UsageError("-o kernel: such a mount has no daemon; omit -f and -d")
        with importing:
            from fffs.base.descriptors import open_standard_streams
            from fffs.mount.daemon.log import DaemonLog
            from fffs.mount.daemon.session import serve

        open_standard_streams()
        os.environ.update(job.environment)
        log = DaemonLog(job.options.log, debug)
        serve(job)
        log.exit_code = 0
    else:
        start(job, progress)
