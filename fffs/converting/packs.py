"""Packs archives, and compares packed folders with the archives or folders that they were made from."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

import numpy as np

from fffs.base.jobs import Jobs, Progress
from fffs.converting.archive import Archive
from fffs.converting.verifying import compare_tree, differs
from fffs.errors import SourceChangedError
from fffs.files.atomic_output import AtomicOutput
from fffs.files.leases import open_waiting
from fffs.layouts.view import TreeView
from fffs.native.engine import BLOCK
from fffs.packing.contents import Source
from fffs.packing.names import Contents, Int64Array
from fffs.packing.pack_file import numbered, record_of
from fffs.packing.protect import reread
from fffs.packing.scan import ExcludedOutput, scan_folder
from fffs.packing.source_folder import open_source
from fffs.tree.tree import UInt8Array, UInt32Array


def scan_archive(archive: Archive, progress: Progress | None) -> Contents:
    """Read the names in an archive. This is the first of two passes over it."""
    archive.scan(progress)
    return archive.names.lay_out()


class Compared(Source, Protocol):
    """What was packed. ``path``: its name in messages."""

    path: str


def compare_contents(
    archive: Compared, contents: Contents, output: AtomicOutput, jobs: int, progress: Progress | None
) -> None:
    """Compare an archive, or objects, with the file that they were packed into. Raises RecordError if they differ."""
    target = output.path
    with reread(output) as result:
        alignment = alignment_of(result)
        compare_tree(numbered(contents.tree, alignment), result.tree, archive.path, target)
        work = Jobs(contents.total_bytes, progress)
        work.count(0)
        archive.each(_Comparing(result, target, contents.sizes, work), contents, work, jobs)


def compare_folder(folder: str, output: AtomicOutput, progress: Progress | None) -> None:
    """Compare a folder with the file that it was packed into. Raises RecordError if they differ."""
    target = output.path
    with open_source(os.fsencode(folder)) as source, reread(output) as result:
        scan = scan_folder(source, ExcludedOutput(os.fsencode(target)), lambda _: None)
        tree = scan.tree
        if scan.holds_output is not None:
            node = result.tree.find(scan.holds_output)
            mtime = tree.mtime.copy()
            mtime[node] = result.tree.mtime[node]
            tree = replace(tree, mtime=mtime)
        alignment = alignment_of(result)
        compare_tree(numbered(tree, alignment), result.tree, folder, target)
        work = Jobs(scan.total_bytes, progress)
        work.count(0)
        for k in range(len(scan.sizes)):
            path = scan.path(k)
            way, name = os.path.split(path)
            try:
                with source.ways.at(way) as dir_fd:
                    fd = open_waiting(name, os.O_NOFOLLOW, dir_fd)
            except OSError:
                raise SourceChangedError(f"{source.shown(path)}: changed while it was compared") from None
            with open(fd, "rb") as content:
                _compare(
                    result, target, record_of(k, alignment), iter(functools.partial(content.read, BLOCK), b""), work
                )


def alignment_of(pack: TreeView) -> int:
    """Return the alignment of a packed folder, as in ``RecordIndex``."""
    return pack.store.files[0].index.alignment


class _Comparing:
    """Compares files with the records of the result."""

    def __init__(self, result: TreeView, target: str, sizes: Int64Array, jobs: Jobs) -> None:
        self._result, self._target, self._sizes, self._jobs = result, target, sizes, jobs
        self._alignment = alignment_of(result)

    def files(self, records: UInt32Array, starts: Int64Array, data: UInt8Array) -> None:
        written = record_of(records, self._alignment)
        there, offsets = self._result.store.read_joined(written)
        ends = starts + self._sizes[records]
        for k, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            if data[start:end].tobytes() != there[offsets[k] : offsets[k + 1]].tobytes():
                raise differs(self._target, int(written[k]))
        self._jobs.count(int((ends - starts).sum()))

    def file(self, record: int, pieces: Iterator[bytes]) -> None:
        _compare(self._result, self._target, record_of(record, self._alignment), pieces, self._jobs)


def _compare(result: TreeView, target: str, record: int, pieces: Iterator[bytes], work: Jobs) -> None:
    """Compare the bytes of a file with its record in the result."""
    at = 0
    for piece in pieces:
        room = np.empty(len(piece), np.uint8)
        if result.store.read_range_into(record, at, room) != len(piece) or room.tobytes() != piece:
            raise differs(target, record)
        at += len(piece)
        work.count(len(piece))
    if at != result.store.length(record):
        raise differs(target, record)
