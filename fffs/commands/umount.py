"""``fffs umount``."""

from __future__ import annotations

import argparse

from fffs.cli import OK
from fffs.commands.mount import unmount


def run(args: argparse.Namespace) -> int:
    """Unmount."""
    unmount(args.mountpoint, args.lazy)
    return OK
