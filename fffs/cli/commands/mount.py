"""``fffs mount``, and ``mount.fffs`` for mount(8)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

import fffs.mount as _mount
from fffs.cli.output import printable
from fffs.cli.progress import ProgressBar
from fffs.mount import options as _options


def run(args: argparse.Namespace) -> int:
    """Mount sources."""
    options = _options.parse(args.options)
    options = replace(options, suffix=args.suffix or options.suffix, format=args.format or options.format)
    with ProgressBar(printable(f"verifying {args.source[0]}")) as bar:
        _mount.mount(
            args.source,
            args.mountpoint,
            options=options,
            foreground=args.foreground or args.debug,
            debug=args.debug,
            progress=bar,
        )
    return 0


def unmount(mountpoint: str, lazy: bool) -> None:
    """Unmount, even if the daemon is dead."""
    _mount.umount(mountpoint, lazy=lazy)


def helper(argv: Sequence[str]) -> int:
    """Mount with the arguments that mount(8) passes: ``SOURCE DIR [-sfnv] [-o OPTIONS]``."""
    return _mount.helper(list(argv))
