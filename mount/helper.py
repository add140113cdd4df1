"""``mount.fffs``: the program that mount(8) runs for ``mount -t fffs``, also for systemd and /etc/fstab."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import NoReturn

from fffs.errors import UsageError
from fffs.mount.daemon import background
from fffs.mount.daemon.job import Job, make_job
from fffs.mount.options import parse, split_options
from fffs.mount.system.erofs import shown_source
from fffs.mount.system.mounts import mount_at


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"mount.fffs: {message}")


def helper(argv: Sequence[str]) -> int:
    """Mount in the background. The arguments are ``SOURCE DIR [-sfnv] [-o OPTIONS]`` ("External helpers" in mount(8)).

    The option ``rw`` is ignored: mount(8) adds it unless told otherwise.

    Raises:
        FffsError: mounting failed, and nothing is mounted.

    Examples:
        >>> fffs.mount.helper(["photos.ffr", "mnt", "-o", "ro,noexec"])
        0
        >>> fffs.mount.umount("mnt")

    """
    parser = _Parser(prog="mount.fffs", description="Mount as mount(8) asks for it.")
    parser.add_argument("source")
    parser.add_argument("mountpoint", metavar="dir")
    parser.add_argument("-s", dest="sloppy", action="store_true", help="ignore unknown options")
    parser.add_argument("-f", dest="fake", action="store_true", help="do everything but mounting")
    parser.add_argument("-n", action="store_true", help="ignored")
    parser.add_argument("-v", action="store_true", help="ignored")
    parser.add_argument("-t", metavar="type", help="ignored")
    parser.add_argument("-o", dest="options", action="append", default=[])
    parser.add_argument("-N", dest="namespace", metavar="ns", help="refused")
    args = parser.parse_args(list(argv))
    if args.namespace is not None:  # mount(8) starts its helpers in its own one
        raise UsageError(
            "mount.fffs: -N: it cannot mount in another namespace; run mount in that: nsenter --mount=NS mount -t fffs"
        )
    wanted = [option for argument in args.options for option in split_options(argument) if option != "rw"]
    options = parse([option for option in wanted if _known(option)] if args.sloppy else wanted)
    job = make_job(args.source, args.mountpoint, options)
    if not args.fake and not _is_mounted(job):
        background.start(job)
    return 0


def _is_mounted(job: Job) -> bool:
    """Whether the kernel already serves this mount. `mount -a` does not recognise it: it has another type."""
    mount = mount_at(job.mountpoint) if job.options.kernel is not False else None
    return mount is not None and mount.in_kernel and mount.source == os.fsdecode(shown_source(job.name))


def _known(option: str) -> bool:
    try:
        parse([option])
    except UsageError:
        return False
    return True
