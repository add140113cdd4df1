"""``fffs umount``."""

from __future__ import annotations

import argparse

from fffs.cli import OK
from fffs.commands.mount import _mount


def run(args: argparse.Namespace) -> int:
    """Unmount."""
    _mount.umount(args.mountpoint, lazy=args.lazy)
    return OK
