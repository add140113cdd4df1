"""``fffs cat``."""

from __future__ import annotations

import argparse
import os

import numpy as np

from fffs.base.numbers import resolve
from fffs.cli.output import put
from fffs.errors import EntryNotFoundError, Exit, RecordIndexError, UsageError
from fffs.layouts import load_source
from fffs.layouts.view import TreeView

CHUNK = 1 << 22


def run(args: argparse.Namespace) -> int:
    """Write files to standard output. A record is verified before its first byte is written."""
    with load_source(args.source, format=args.format, prefix=args.prefix) as source:
        records = [_record(source, args.source, path, args.record) for path in args.path]
        buffer = np.empty(CHUNK, np.uint8)
        for record in records:
            # Otherwise a large record with block checksums would be written block by block, up to the first bad one.
            for _, failure in source.store.verify(np.array([record])) if source.store.length(record) > CHUNK else []:
                raise failure
            start = 0
            while got := source.store.read_range_into(record, start, buffer) or 0:
                put(buffer[:got].data)
                start += got
    return Exit.OK


def _record(source: TreeView, shown: str, path: str, is_number: bool) -> int:
    if is_number:
        try:
            return int(resolve([int(path)], source.store.n)[0])
        except RecordIndexError as error:
            raise RecordIndexError(f"{shown}: {error}") from None
        except ValueError:
            raise UsageError(f"{path}: not a record number") from None
    node = source.tree.follow(os.fsencode(path))
    if node is None:
        what = "a dangling symbolic link" if source.tree.has(os.fsencode(path)) else "no such file"
        raise EntryNotFoundError(f"{path!r}: {what} in {shown}")
    if not source.tree.is_file(node):
        raise UsageError(f"{path}: is a folder; name a file in it (fffs ls lists them)")
    return source.tree.record(node)
