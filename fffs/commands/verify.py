"""``fffs verify``."""

from __future__ import annotations

import argparse
import json
import time

from fffs.cli import OK, complain
from fffs.errors import RecordError
from fffs.layouts import load_source
from fffs.progress import ProgressBar, human
from fffs.verify import BadRecord, verify


def run(args: argparse.Namespace) -> int:
    """Check every byte; the exit code says whether all is well."""
    begin = time.monotonic()
    with load_source(args.source) as source:
        with ProgressBar(f"verifying {args.source[0]}") as bar:
            bad = verify(source, bar)
        records, size = source.store.n, sum(file.index.file_size for file in source.store.files)
    if args.json:
        print(json.dumps({"records": records, "bytes": size, "bad": [vars(entry) for entry in bad]}, indent=1))
    else:
        for entry in bad:
            print(_line(entry))
        if not args.quiet and not bad:
            seconds = max(time.monotonic() - begin, 1e-9)
            print(f"ok: {records} records, {human(size)} in {seconds:.1f} s ({human(size / seconds)}/s)")
    if not bad:
        return OK
    complain(f"{len(bad)} of {records} records are bad; copy the file again, or restore it from a backup")
    return RecordError.exit_code


def _line(entry: BadRecord) -> str:
    name = "" if entry.name is None else f" {ascii(entry.name)}"
    return f"{entry.source}: record {entry.record}{name} at offset {entry.offset}: {entry.problem}"
