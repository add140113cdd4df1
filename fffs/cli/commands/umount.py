"""``fffs umount``."""

from __future__ import annotations

import argparse

from fffs.cli.commands.mount import unmount
from fffs.cli.parser import OK


def run(args: argparse.Namespace) -> int:
    """Unmount."""
    unmount(args.mountpoint, args.lazy)
    return OK
