"""Archive: an open archive."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator

from fffs.base.jobs import Jobs, Progress
from fffs.base.withblock import Closing
from fffs.errors import SourceChangedError
from fffs.files.file import File
from fffs.formats.streams import Stream
from fffs.native.engine import BLOCK
from fffs.packing.contents import Work
from fffs.packing.names import Contents, Names


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
        if status := self.file.changed(self._stamp):
            raise self._changed() if status == -errno.ESTALE else self.file.failure(-status)

    def close(self) -> None:
        """Close the file."""
        self.file.close()
