"""``fffs verify``."""

from __future__ import annotations

import argparse
import json
import time

from fffs.base.text import human, plural
from fffs.cli.output import Warnings, complain, printable, put, say
from fffs.cli.progress import ProgressBar
from fffs.errors import Exit, RecordError
from fffs.formats.sources import expand_sources
from fffs.formats.table import format_with
from fffs.packing.sidecars import keep_checksums
from fffs.packing.verify import BadRecord
from fffs.packing.verify_plan import verify_files
from fffs.packing.verify_source import verify_source

LINES_MAX = 100  # bad records; in a truncated file, every record past the end is bad


def run(args: argparse.Namespace) -> int:
    """Check every byte. The exit code is 0 if no record is bad."""
    form, sources = format_with(args.prefix, args.format), args.source
    if args.prefix is not None:
        sources = expand_sources(sources, args.prefix)
    if args.keep:
        for path in sources:
            keep_checksums(path, form)
    begin = time.monotonic()
    with ProgressBar(printable(f"verifying {args.source[0]}")) as bar:
        if args.executor:
            with Warnings() as warn:
                found = verify_files(sources, form, args.executor, bar, warn)
        else:
            found = verify_source(sources, form, bar)
    records, size, without, bad = found.records, found.size, found.unverifiable, found.bad
    if args.json:
        facts = {"records": records, "bytes": size, "unverifiable": without, "bad": [vars(entry) for entry in bad]}
        put(json.dumps(facts, indent=1).encode() + b"\n")
    else:
        for entry in bad[:LINES_MAX]:
            say(_line(entry))
        if len(bad) > LINES_MAX:
            say(f"... and {len(bad) - LINES_MAX} more (--json lists all)")
        if not args.quiet and not bad:
            seconds = max(time.monotonic() - begin, 1e-9)
            how = f"{human(size)} in {seconds:.1f} s ({human(size / seconds)}/s)"
            if without < records or not records:
                say(f"ok: {plural(records - without, 'record')}, {how}")
            if without:
                say(f"not verifiable: {plural(without, 'record')} without checksums could be read, {how}")
            for path, digest in found.digests.items():
                if digest:
                    say(f"{path}: fs-verity: {digest}")
    if not bad:
        return Exit.OK
    for name in found.stale:
        complain(f"{name}: all records differ from it; if another program replaced the file, remove it (see --keep)")
    count = len({entry.number for entry in bad})
    are = "is" if count == 1 else "are"
    complain(f"{count} of {plural(records, 'record')} {are} bad; copy the file again, or restore it from a backup")
    return RecordError.exit_code


def _line(entry: BadRecord) -> str:
    name = "" if entry.name is None else f" {entry.name!a}"
    return f"{entry.source}: record {entry.record}{name} at offset {entry.offset}: {entry.problem}"
