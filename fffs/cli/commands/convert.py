"""``fffs convert``."""

from __future__ import annotations

import argparse
import time

from fffs.base.text import human, plural
from fffs.cli.output import Warnings, printable, say
from fffs.cli.program import interrupt_once
from fffs.cli.progress import ProgressBar
from fffs.converting import convert
from fffs.converting.kinds import COUNTED
from fffs.errors import Exit


def run(args: argparse.Namespace) -> int:
    """Convert a source."""
    interrupt_once()
    begin = time.monotonic()
    with Warnings() as warn, ProgressBar(printable(f"converting {args.source}")) as bar:
        done = convert(
            args.source,
            args.output,
            from_=args.source_format,
            to=args.to,
            layout=args.layout,
            key=args.key,
            parts=args.parts,
            part_size=args.part_size,
            jobs=args.jobs,
            verify=args.verify,
            force=args.force,
            align=args.align,
            verity=args.verity,
            progress=bar,
            warn=warn,
        )
    if not args.quiet:
        seconds = max(time.monotonic() - begin, 1e-9)
        what = plural(done.items, COUNTED.get(done.source, "record"))
        where = f" in {plural(done.parts, 'part')}" if args.parts or args.part_size else ""
        rate = human(done.total_bytes / seconds)
        proof = ", verified" if args.verify else ""
        say(f"{args.output}: {what}{where}, {human(done.total_bytes)} in {seconds:.1f} s ({rate}/s){proof}")
    return Exit.OK
