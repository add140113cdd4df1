"""Archive: an open archive, and what is done with its files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from fffs.base.jobs import Jobs, Progress
from fffs.base.withblock import Closing
from fffs.converting.names import Contents, Int64Array, Names
from fffs.errors import SourceChangedError
from fffs.files.file import File
from fffs.formats.streams import Stream
from fffs.native.engine import BLOCK
from fffs.tree.tree import UInt8Array, UInt32Array


class Work(Protocol):
    """What is done with the files of an archive, from any thread."""

    def files(self, records: UInt32Array, starts: Int64Array, data: UInt8Array) -> None:
        """Called with whole files, none larger than BLOCK: the one that is records[i] begins at starts[i] in data."""

    def file(self, record: int, pieces: Iterator[bytes]) -> None:
        """Called with a file, in pieces of BLOCK bytes (the last one may be shorter)."""


class Archive(Closing):
    """An open archive and the names in it. The caller closes it."""

    def __init__(self, file: File, warn: Callable[[str], None]) -> None:
        """file: owned and closed by this object."""
        self.file, self.path, self.size = file, file.name, file.size
        self._stamp = file.stamp()
        self.names = Names(file.name, warn)

    def scan(self, progress: Progress | None) -> None:
        """Collect all names, and where their bytes are. This is the first of two passes."""
        raise NotImplementedError

    def each(self, work: Work, contents: Contents, jobs: Jobs, threads: int) -> None:
        """Pass each file of the archive to ``work``, in the archive's order or in several threads."""
        raise NotImplementedError

    def _take(self, stream: Stream, size: int) -> Iterator[bytes]:
        while size:
            piece = stream.read(min(size, BLOCK))
            if not piece:
                raise self._changed()
            size -= len(piece)
            yield piece

    def _changed(self) -> SourceChangedError:
        return SourceChangedError(f"{self.path}: changed while it was read; convert it when nothing writes to it")

    def refuse_changed(self) -> None:
        """Raise SourceChangedError if the archive has changed since it was opened."""
        if self.file.changed(self._stamp):
            raise self._changed()

    def close(self) -> None:
        """Close the file."""
        self.file.close()
