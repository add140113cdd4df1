"""The mount: packed folders and record files as a read-only file system, through pyfuse3.

``mounted`` for Python programs; ``mount`` and ``umount`` as on the command line. pyfuse3 and libfuse are needed only
where something is really mounted, in the daemon's process.
"""

from __future__ import annotations

from collections.abc import Sequence

from fffs.mount.helper import helper
from fffs.mount.job import Path, make_job
from fffs.mount.options import MountOptions
from fffs.mount.python import mounted
from fffs.mount.unmount import umount

__all__ = ["MountOptions", "helper", "mount", "mounted", "umount"]


def mount(
    sources: Path | Sequence[Path],
    mountpoint: Path,
    *,
    options: MountOptions = MountOptions(),  # noqa: B008 - immutable
    suffix: str = "",
    foreground: bool = False,
    debug: bool = False,
) -> int:
    """Mount sources as one tree, until somebody unmounts it.

    Args:
        sources: a packed folder or record file, a folder of parts, or several of these.
        mountpoint: where; made when missing, and removed after unmounting then.
        options: see ``MountOptions``.
        suffix: ending of the numbered names of a plain record file; the same as ``options.suffix``.
        foreground: serve in this process, and return when it is unmounted; only in the main thread, and once per
            process. Otherwise a daemon serves, and this returns when the mount answers.
        debug: log every request.

    Returns:
        0.

    Raises:
        FffsError: nothing is mounted.

    """
    job = make_job(sources, mountpoint, options, suffix, debug)
    if foreground:
        from fffs.mount.log import DaemonLog
        from fffs.mount.session import serve

        DaemonLog(job.options.log, debug)
        serve(job)
    else:
        from fffs.mount.background import start

        start(job)
    return 0
