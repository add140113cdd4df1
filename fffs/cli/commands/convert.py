"""``fffs convert``."""

from __future__ import annotations

import argparse
import time

from fffs.base.text import human, plural
from fffs.cli.output import Warnings, printable, say
from fffs.cli.program import interrupt_once
from fffs.cli.progress import ProgressBar
from fffs.cli.report_file import Report, report_file
from fffs.converting import convert
from fffs.converting.kinds import counted
from fffs.errors import Exit


def run(args: argparse.Namespace) -> int:
    """Convert a source."""
    interrupt_once()
    begin = time.monotonic()
    bar = ProgressBar(printable(f"converting {args.source[0]}"))
    with Warnings() as warn, report_file(args.report) as keep, bar:

        def report(report: Report) -> None:
            bar.detail = f"{len(report.results)}/{report.parts} parts"
            keep(report)

        done = convert(
            args.source if len(args.source) > 1 else args.source[0],
            args.output,
            from_=args.source_format,
            prefix=args.prefix,
            to=args.to,
            layout=args.layout,
            key=args.key,
            column=args.column,
            parts=args.parts,
            part_size=args.part_size,
            jobs=args.jobs,
            verify=args.verify,
            force=args.force,
            align=args.align,
            verity=args.verity,
            executor=args.executor,
            restart=args.restart,
            progress=bar,
            warn=warn,
            report=report if args.executor or args.restart or args.report else None,
        )
    if not args.quiet:
        seconds = max(time.monotonic() - begin, 1e-9)
        what = plural(done.items, counted(done.source, done.destination, args.column))
        where = f" in {plural(done.parts, 'part')}" if args.parts or args.part_size else ""
        rate = human(done.total_bytes / seconds)
        proof = ", verified" if args.verify else ""
        say(f"{args.output}: {what}{where}, {human(done.total_bytes)} in {seconds:.1f} s ({rate}/s){proof}")
    return Exit.OK
