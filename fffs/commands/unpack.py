"""``fffs unpack``."""

from __future__ import annotations

import argparse

from fffs.cli import OK, complain, interrupt_once, printable, say, warn
from fffs.layouts import load_source
from fffs.progress import ProgressBar
from fffs.unpacking import unpack


def run(args: argparse.Namespace) -> int:
    """Unpack a source."""
    interrupt_once()
    with load_source([args.source]) as source, ProgressBar(printable(f"unpacking {args.source}")) as bar:
        warn(source.warnings)
        unpack(
            source,
            args.target,
            special_bits=args.special_bits,
            jobs=args.jobs,
            progress=bar,
            warn=lambda line: complain(f"warning: {line}"),
        )
        count = len(source.tree.mode) - 1
    if not args.quiet:
        say(f"{args.target}: {count} files and folders, all verified")
    return OK
