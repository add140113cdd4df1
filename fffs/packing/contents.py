"""Packs what is known by a tree and its records' sizes: the members of an archive, or objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from fffs.base.jobs import Jobs, Progress
from fffs.files.atomic_output import AtomicOutput
from fffs.packing.names import Contents, Int64Array
from fffs.packing.pack_file import PackFile
from fffs.tree.tree import UInt8Array, UInt32Array


class Work(Protocol):
    """What is done with files, from any thread."""

    def files(self, records: UInt32Array, starts: Int64Array, data: UInt8Array) -> None:
        """Called with whole files, none larger than BLOCK: the one that is records[i] begins at starts[i] in data."""

    def file(self, record: int, pieces: Iterator[bytes]) -> None:
        """Called with a file, in pieces of BLOCK bytes (the last one may be shorter)."""


class Source(Protocol):
    """Files that are passed to a ``Work``."""

    def each(self, work: Work, contents: Contents, jobs: Jobs, threads: int) -> None:
        """Pass each file, in one or several threads."""


class _Packing:
    """Writes files into a packed folder."""

    def __init__(self, pack: PackFile, jobs: Jobs) -> None:
        self._pack, self._jobs = pack, jobs

    def files(self, records: UInt32Array, starts: Int64Array, data: UInt8Array) -> None:
        self._pack.put_files(records, starts, data)
        self._jobs.count(int(self._pack.sizes[records].sum()))

    def file(self, record: int, pieces: Iterator[bytes]) -> None:
        at = 0
        for piece in pieces:
            self._pack.put(record, at, piece)
            at += len(piece)
            self._jobs.count(len(piece))
        if not at:
            self._pack.put(record, 0, b"")


def pack_contents(
    source: Source,
    contents: Contents,
    output: AtomicOutput,
    jobs: int,
    progress: Progress | None,
    align: bool = False,
) -> int:
    """Pack files into a new file, which the caller commits. Nothing is unpacked to a disk.

    Returns the checksum of its header.
    """
    pack = PackFile(output, contents.sizes, align)
    work = Jobs(contents.total_bytes, progress, output.cancel)
    source.each(_Packing(pack, work), contents, work, jobs)
    return pack.finish(contents.tree)
