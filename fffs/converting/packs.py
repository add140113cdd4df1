"""Packs archives, and compares packed folders with the archives or folders that they were made from."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fffs.base.jobs import Jobs, Progress
from fffs.base.withblock import closed_on_error
from fffs.converting.archives import Archive
from fffs.converting.names import ArchivedFile
from fffs.converting.verifying import compare_tree, differs
from fffs.errors import SourceChangedError
from fffs.files.atomic import AtomicFile
from fffs.formats import ffrecord
from fffs.layouts import packed
from fffs.layouts.view import TreeView
from fffs.native.engine import BLOCK
from fffs.packing.arrange import packable
from fffs.packing.pack_file import PackFile, numbered, record_of
from fffs.packing.scan import ExcludedOutput, scan_folder
from fffs.packing.source_folder import open_source
from fffs.records.source_file import SourceFile
from fffs.records.store import RecordStore
from fffs.tree.tree import Tree


class Contents(NamedTuple):
    """The contents of an archive."""

    tree: Tree
    files: list[ArchivedFile]
    total_bytes: int


def scan_archive(archive: Archive, progress: Progress | None) -> Contents:
    """Read the names in an archive. This is the first of two passes over it."""
    archive.scan(progress)
    builder, files = archive.names.lay_out()
    with packable(archive.path):
        tree = builder.build(len(files), archive.path)
    return Contents(tree, files, sum(file.size for file in files))


def pack_archive(
    archive: Archive,
    contents: Contents,
    output: AtomicFile,
    jobs: int,
    progress: Progress | None,
    align: bool = False,
) -> None:
    """Pack the members of an archive into a new file, which the caller commits. No member is unpacked to a disk."""
    files = contents.files
    pack = PackFile(output, np.fromiter((file.size for file in files), np.int64, len(files)), align)
    work = Jobs(contents.total_bytes, progress)

    def put(file: ArchivedFile, pieces: Iterator[bytes]) -> None:
        at = 0
        for piece in pieces:
            pack.put(file.record, at, piece)
            at += len(piece)
            work.count(len(piece))

    archive.each(put, files, work, jobs)
    pack.finish(contents.tree)


@contextlib.contextmanager
def reread(file: AtomicFile) -> Iterator[TreeView]:
    """Open a packed folder that was just written, before it is renamed, from the disk. Raises as ``load_source``."""
    written = file.reread()
    with closed_on_error((written,)):
        loaded = packed.load(SourceFile(written, ffrecord.load_index(written)))
    with TreeView(loaded.tree, RecordStore([loaded.file]), layout="packed") as source:
        yield source


def compare_archive(
    archive: Archive, contents: Contents, output: AtomicFile, jobs: int, progress: Progress | None
) -> None:
    """Compare an archive with the file that it was packed into. Raises RecordError if they differ."""
    target = output.path
    with reread(output) as result:
        alignment = alignment_of(result)
        compare_tree(numbered(contents.tree, alignment), result.tree, archive.path, target)
        work = Jobs(contents.total_bytes, progress)
        work.count(0)
        archive.each(
            lambda file, pieces: _compare(result, target, record_of(file.record, alignment), pieces, work),
            contents.files,
            work,
            jobs,
        )


def compare_folder(folder: str, output: AtomicFile, progress: Progress | None) -> None:
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
                    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
            except OSError:
                raise SourceChangedError(f"{source.shown(path)}: changed while it was compared") from None
            with open(fd, "rb") as content:
                _compare(
                    result, target, record_of(k, alignment), iter(functools.partial(content.read, BLOCK), b""), work
                )


def alignment_of(pack: TreeView) -> int:
    """Return the alignment of a packed folder, as in ``RecordIndex``."""
    return pack.store.files[0].index.alignment


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
