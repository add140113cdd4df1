"""``fffs umount``."""

from __future__ import annotations

import argparse

from fffs.cli.commands.mount import unmount
from fffs.errors import Exit


def run(args: argparse.Namespace) -> int:
    """Unmount."""
    unmount(args.mountpoint, args.lazy)
    return Exit.OK
