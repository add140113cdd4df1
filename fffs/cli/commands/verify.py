"""``fffs verify``."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace

from fffs.base.text import human, plural
from fffs.cli.output import complain, printable, put, say
from fffs.cli.progress import ProgressBar
from fffs.errors import Exit, FormatError, RecordError
from fffs.files.verity import look
from fffs.layouts import load_records, load_source
from fffs.layouts.view import TreeView
from fffs.packing.sidecars import keep_checksums, suspects
from fffs.packing.verify import BadRecord, unverifiable, verify
from fffs.records import index_cache

LINES_MAX = 100  # bad records; in a truncated file, every record past the end is bad


def run(args: argparse.Namespace) -> int:
    """Check every byte. The exit code is 0 if no record is bad."""
    if args.keep:
        for path in args.source:
            keep_checksums(path, args.format)
    begin = time.monotonic()
    source, refusal = _load(args.source, args.format)
    with source:
        with ProgressBar(printable(f"verifying {args.source[0]}")) as bar:
            bad = verify(source, bar)
        records, size = source.store.n, source.store.size
        without = unverifiable(source)
        digests = {file.index.path: str(look(file.file)) for file in source.store.files}
        stale = suspects(source.store.files, (entry.source for entry in bad))
    if refusal and not bad:
        raise refusal
    if refusal:  # the tree is damaged: load_records named the records by their numbers, which is no help here
        bad = [replace(entry, name=None) for entry in bad]
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
            for path, digest in digests.items():
                if digest:
                    say(f"{path}: fs-verity: {digest}")
    if not bad:
        return Exit.OK
    for name in stale:
        complain(f"{name}: all records differ from it; if another program replaced the file, remove it (see --keep)")
    count = len({entry.number for entry in bad})
    are = "is" if count == 1 else "are"
    complain(f"{count} of {plural(records, 'record')} {are} bad; copy the file again, or restore it from a backup")
    return RecordError.exit_code


def _load(paths: list[str], form: str | None) -> tuple[TreeView, FormatError | None]:
    """Open a source. If its tree of names is damaged, return its records alone, and the error."""
    with index_cache.unused():
        try:
            return load_source(paths, format=form), None
        except FormatError as refusal:
            return load_records(paths, form), refusal


def _line(entry: BadRecord) -> str:
    name = "" if entry.name is None else f" {entry.name!a}"
    return f"{entry.source}: record {entry.record}{name} at offset {entry.offset}: {entry.problem}"
