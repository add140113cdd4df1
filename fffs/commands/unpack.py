"""``fffs unpack``."""

from __future__ import annotations

import argparse

from fffs.cli import OK, complain
from fffs.layouts import load_source
from fffs.progress import ProgressBar
from fffs.unpack import unpack


def run(args: argparse.Namespace) -> int:
    """Unpack a source."""
    with load_source([args.source]) as source, ProgressBar(f"unpacking {args.source}") as bar:
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
        print(f"{args.target}: {count} files and folders, all verified")
    return OK
