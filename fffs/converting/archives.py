"""Archives: reads the members of tar files without unpacking them, also of compressed ones; opens archives."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from fffs.base.jobs import Jobs, Progress
from fffs.base.withblock import closed_on_error
from fffs.converting import tar
from fffs.converting.archive import Archive
from fffs.converting.zip_archive import Zip
from fffs.errors import MetadataError, UnsupportedError
from fffs.files.file import File
from fffs.formats import other_formats
from fffs.formats.streams import Stream, compression
from fffs.native.engine import BLOCK
from fffs.objects.locations import open_in_order
from fffs.packing.contents import Work
from fffs.packing.names import Contents
from fffs.packing.runs import RUNS, divide
from fffs.tree.tree import UInt8Array


class Tar(Archive):
    """A tar archive."""

    def __init__(self, file: File, warn: Callable[[str], None]) -> None:
        super().__init__(file, warn)
        head = _head(file)
        self.kind = compression(head)
        if head.startswith(other_formats.ZSTD):
            raise UnsupportedError(f"{file.name}: {other_formats.describe(head)}")

    def scan(self, progress: Progress | None) -> None:
        """As in ``Archive``."""
        stream = Stream(self.file, self.kind)

        def report() -> None:
            if progress:
                progress(stream.done, self.size)

        tar.read_names(stream, self.names, report)

    def each(self, work: Work, contents: Contents, jobs: Jobs, threads: int) -> None:
        """As in ``Archive``: in the archive's order. A compressed archive can only be read from its beginning to its
        end, in one thread.
        """
        order = np.argsort(contents.places, kind="stable").astype(np.uint32)
        places, sizes = contents.places[order], contents.sizes[order]
        portions = places // BLOCK
        runs = divide(portions[1:] != portions[:-1], sizes)
        stream = Stream(self.file, self.kind)

        def next_run(k: int) -> None:
            first, last = int(runs[k]), int(runs[k + 1])
            begin, end = int(places[first]), int(places[last - 1] + sizes[last - 1])
            if sizes[first] > BLOCK:
                part = self._at(begin, stream) if self.kind else Stream(self.file, None, begin, end)
                work.file(int(order[first]), self._take(part, end - begin))
                return
            records = np.sort(order[first:last])
            work.files(records, contents.places[records] - begin, self._span(begin, end, stream))

        jobs.run(next_run, range(len(runs) - 1), threads if self.kind is None else 1, RUNS)

    def _at(self, place: int, stream: Stream) -> Stream:
        """Return the stream, after skipping to a place."""
        if not stream.skip(place - stream.position):
            raise self._changed()
        return stream

    def _span(self, begin: int, end: int, stream: Stream) -> UInt8Array:
        """Return a range of the archive's content, which is next in the stream if it is compressed."""
        if self.kind is None:
            data = np.empty(end - begin, np.uint8)
            size = self.file.read_at(begin, data)
        else:
            data = np.frombuffer(self._at(begin, stream).read(end - begin), np.uint8)
            size = len(data)
        if size < end - begin:
            raise self._changed()
        return data


def _head(file: File) -> bytes:
    return file.read_bytes(0, tar.BLOCK)


def is_tar(file: File, *, named: bool) -> bool:
    """Return whether the file begins like a tar archive, which may be compressed, or is an empty one by its name.
    named: its name is that of another format, so only the magic number of tar counts.
    """
    head = _head(file)
    kind = compression(head)
    if kind is not None:
        try:
            head = Stream(file, kind).read(tar.BLOCK)
        except MetadataError:
            return False
    if tar.is_header(head, file.size if kind is None else None, old=not named):
        return True
    return not named and len(head) == tar.BLOCK and not any(head) and ".tar" in os.path.basename(file.name)


def is_zip(file: File) -> bool:
    """Return whether the file begins like a zip archive."""
    return _head(file).startswith(other_formats.ZIP)


def open_archive(path: str, kind: str, warn: Callable[[str], None]) -> Archive:
    """Open an archive; kind is "tar" or "zip".

    Raises:
        UnsupportedError: the compression of the archive is not supported. ReadError: it cannot be read.

    """
    file = open_in_order(path)
    with closed_on_error((file,)):
        return (Tar if kind == "tar" else Zip)(file, warn)
