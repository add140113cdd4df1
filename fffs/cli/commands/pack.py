"""``fffs pack``."""

from __future__ import annotations

import argparse
import os
import time

from fffs.base.text import human, plural
from fffs.cli.output import Warnings, complain, printable, say
from fffs.cli.program import interrupt_once
from fffs.cli.progress import ProgressBar
from fffs.cli.report_file import Report, report_file
from fffs.errors import Exit, UsageError
from fffs.formats.ffrecord import SUFFIX
from fffs.objects.locations import list_folder
from fffs.objects.names import base_name, is_url
from fffs.packing.pack import pack_folder
from fffs.packing.packer import PackSummary


def run(args: argparse.Namespace) -> int:
    """Pack a folder."""
    interrupt_once()
    name = base_name(args.folder) if is_url(args.folder) else os.path.basename(os.path.abspath(args.folder))
    if not args.output and not name:
        raise UsageError(f"{args.folder}: has no name to derive the name of the output from; give OUTPUT, too")
    if args.parts and not args.output:
        raise UsageError(f"{args.folder}: name the folder for the parts, too")
    if args.report and not args.parts:
        raise UsageError(f"{args.folder}: --report is for parts; give their number with --parts, too")
    output = args.output or f"{name}.ffr"
    begin = time.monotonic()
    summary = _pack(args, output)
    if not args.quiet:
        seconds = max(time.monotonic() - begin, 1e-9)
        rate = human(summary.total_bytes / seconds)
        count = sum(name.endswith(SUFFIX) for name in list_folder(output)) if args.parts else 0
        parts = f" in {plural(count, 'part')}" if count else ""
        size = human(summary.total_bytes)
        say(f"{output}: {plural(summary.files, 'file')}{parts}, {size} in {seconds:.1f} s ({rate}/s)")
    return exit_code(summary, output)


def _pack(args: argparse.Namespace, output: str) -> PackSummary:
    """Pack, with a progress bar, warnings and a report."""
    bar = ProgressBar(printable(f"packing {args.folder}"))
    with Warnings() as warn, report_file(args.report) as keep, bar:

        def report(report: Report) -> None:
            bar.detail = f"{len(report.results)}/{report.parts} parts"
            keep(report)

        return pack_folder(
            args.folder,
            output,
            jobs=args.jobs,
            align=args.align,
            verity=args.verity,
            parts=args.parts,
            executor=args.executor,
            restart=args.restart,
            keep_going=args.keep_going,
            progress=bar,
            warn=warn,
            report=report if args.parts else None,
        )


def exit_code(summary: PackSummary, output: str) -> int:
    """Return the exit code of a pack, and say whether something was left out."""
    if count := summary.unread + summary.changed:
        complain(f"{output}: {plural(count, 'input')} left out, which the warnings name")
    return Exit.READ if summary.unread else Exit.CHANGED if summary.changed else Exit.OK
