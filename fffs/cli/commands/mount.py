"""``fffs mount``, and ``mount.fffs`` for mount(8)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

import fffs.mount as _mount
from fffs.cli.output import printable
from fffs.cli.progress import ProgressBar
from fffs.mount import options as _options

OVERRIDES = ("suffix", "format", "prefix", "cache", "cache_size", "endpoint_url")
"""Options that have a name of their own, which wins over one after -o."""


def run(args: argparse.Namespace) -> int:
    """Mount sources."""
    options = _options.parse(args.options)
    given = {name: getattr(args, name) for name in OVERRIDES if getattr(args, name) is not None}
    options = replace(options, **given)
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
