"""``fffs unpack``."""

from __future__ import annotations

import argparse

from fffs.base.text import plural
from fffs.cli.output import Warnings, complain, printable, say
from fffs.cli.program import interrupt_once
from fffs.cli.progress import ProgressBar
from fffs.errors import Exit, FormatError, MetadataError, ReadError, RecordError
from fffs.layouts import load_records, load_source
from fffs.layouts.view import TreeView
from fffs.packing.unpack import unpack
from fffs.packing.verify import unverifiable


def _load(args: argparse.Namespace) -> tuple[TreeView, MetadataError | None]:
    """Open the source. If its tree of names is damaged, return its records alone for --keep-going, and the error."""
    try:
        return load_source(args.source, format=args.format, prefix=args.prefix), None
    except MetadataError as refusal:
        try:
            records = load_records(args.source, args.format)
        except FormatError:
            raise refusal from None  # the header or the index is damaged: no record can be found
        if not args.keep_going:
            records.close()
            raise MetadataError(f"{refusal}, or unpack its records as numbered files (--keep-going)") from None
        complain(f"{refusal}; its records are unpacked as numbered files")
        return records, refusal


def run(args: argparse.Namespace) -> int:
    """Unpack a source."""
    interrupt_once()
    bar = ProgressBar(printable(f"unpacking {args.source}"))
    lines, first = Warnings("", "files left out (fffs verify --json lists all bad records)"), list[Exit]()

    def leave_out(path: str, error: RecordError | ReadError) -> None:
        if not first:
            first.append(error.exit_code)
        lines(f"{path}: left out: {error}")

    source, refusal = _load(args)
    with source, Warnings() as warn, lines, bar:
        for line in source.warnings:
            warn(line)
        try:
            unpack(
                source,
                args.target,
                special_bits=args.special_bits,
                jobs=args.jobs,
                progress=bar,
                warn=warn,
                leave_out=leave_out if args.keep_going else None,
            )
        except (RecordError, ReadError) as error:
            complain(f"{error}; nothing was unpacked (--keep-going unpacks the undamaged files)")
            return error.exit_code
        count, without = len(source.tree.mode) - 1, unverifiable(source)
    if first:
        complain(
            f"{args.target}: {plural(lines.count, 'file')} left out; copy {args.source} again, "
            "or restore it from a backup"
        )
        return first[0]
    if refusal:
        return refusal.exit_code
    if not args.quiet:
        how = f"{plural(without, 'record')} without checksums, not verified" if without else "all verified"
        say(f"{args.target}: {count} files and folders, {how}")
    return Exit.OK
