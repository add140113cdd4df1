"""ForeignItems: what is read from a format of another library: files with names, or the values of one column."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from fffs.base.jobs import Jobs, Progress
from fffs.base.withblock import Closing, closed_on_error
from fffs.converting.records import BATCH_BYTES
from fffs.errors import SourceChangedError, UnsupportedError
from fffs.files.file import File
from fffs.files.reopened_file import OPEN, OpenFiles, ReopenedFile
from fffs.native.engine import BLOCK
from fffs.objects.locations import open_file
from fffs.objects.names import is_remote
from fffs.packing.contents import Work
from fffs.packing.names import Contents, Names

MODE: Final = 0o644
Bytes = bytes | memoryview


class ForeignItems(Closing):
    """An open source in a format of another library. Not thread-safe.

    ``shown``: its name in messages. ``open_files``: owned by this object, in order.
    """

    def __init__(self, open_files: Sequence[File], shown: str) -> None:
        """open_files: closed by ``close``, and if this raises. Raises FormatError, ReadError, UsageError."""
        self.open_files, self.shown = open_files, shown
        with closed_on_error(open_files):
            self._load()

    def _load(self) -> None:
        """Read what all methods need."""

    @property
    def mtime(self) -> int:
        """When the newest file was modified, nanoseconds since 1970."""
        return max((file.mtime_ns for file in self.open_files), default=0)

    @abstractmethod
    def files(self) -> Iterator[tuple[bytes, Bytes]]:
        """Yield the name and the bytes of each file, in order. Memory is bounded, except for the size of one file.

        Raises:
            FormatError: the source is damaged, or cannot be read. ReadError.

        """

    def sizes(self) -> Iterator[tuple[bytes, int]]:
        """Yield the name and size of each file, as ``files``, which this default calls."""
        for name, data in self.files():
            yield name, len(data)

    @abstractmethod
    def values(self, column: str | None) -> Iterator[Bytes]:
        """Yield the values of a column, each of which becomes a record. None: the only one that has bytes.

        Raises UsageError: there is no such column, or several. Also as ``files``.
        """

    def left_out(self, column: str | None, *, names: bool) -> list[str]:
        """Return lines about what is not kept if this becomes a packed folder (names), or records. Raises as ``values``
        for a column that cannot become records.
        """
        return []

    def close(self) -> None:
        """Close the files. May be called again."""
        for file in self.open_files:
            file.close()


def opener(kind: Callable[[Sequence[File], str], ForeignItems]) -> Callable[[Sequence[str], str], ForeignItems]:
    """Return a function that opens files by their paths, as kind. It raises as opening a file, and as kind."""

    def opened(paths: Sequence[str], shown: str) -> ForeignItems:
        files: list[File] = []
        few = OpenFiles() if len(paths) > OPEN else None
        with closed_on_error(files):
            for path in paths:
                files.append(open_file(path) if few is None or is_remote(path) else ReopenedFile(path, few))
        return kind(files, shown)

    return opened


class ItemFolder:
    """The files of ``ForeignItems`` as what is packed; see ``fffs.packing.contents.Source``. ``path``: for messages."""

    def __init__(self, items: ForeignItems) -> None:
        self._items, self.path = items, items.shown

    def scan(self, progress: Progress | None) -> Contents:
        """Read all names and sizes. This is the first of two passes.

        Raises:
            UnsupportedError: the names cannot be those of files, or are too many. FormatError, ReadError.

        """
        names, mtime = Names(self.path, self._refuse), self._items.mtime
        work = Jobs(1, progress)
        for count, (name, size) in enumerate(self._items.sizes()):
            try:
                names.add_file(name, count, size, MODE, mtime)
            except UnsupportedError as error:
                raise UnsupportedError(f"{error}; --column makes records of one column, which need no names") from None
            if not count % 1024:
                work.count(0)
        return names.lay_out()

    def _refuse(self, line: str) -> None:
        """Make warnings about names errors: other than in an archive, no name is there twice or begins with a slash."""
        why = line.removeprefix(f"{self.path}: ").partition(";")[0]
        raise UnsupportedError(f"{self.path}: its names cannot be kept as they are: {why}")

    def each(self, work: Work, contents: Contents, jobs: Jobs, threads: int) -> None:
        """Pass each file to ``work``, in order. Raises SourceChangedError, and as ``ForeignItems.files``."""
        records = np.argsort(contents.places)
        waiting: list[tuple[int, bytes]] = []
        size, k = 0, 0
        for _, data in self._items.files():
            if k == len(records) or len(data) != contents.sizes[records[k]]:
                raise self._changed()
            if len(data) > BLOCK:
                pieces = memoryview(data)
                work.file(int(records[k]), (bytes(pieces[at : at + BLOCK]) for at in range(0, len(data), BLOCK)))
            else:
                waiting.append((int(records[k]), bytes(data)))  # a view would keep all that was read with it
                size += len(data)
            k += 1
            if size >= BATCH_BYTES or len(waiting) >= 1 << 14:
                _pass_on(waiting, work)
                waiting, size = [], 0
        _pass_on(waiting, work)
        if k < len(records):
            raise self._changed()

    def _changed(self) -> SourceChangedError:
        return SourceChangedError(f"{self.path}: changed while it was read; convert it when nothing writes to it")


def _pass_on(files: list[tuple[int, Any]], work: Work) -> None:
    if files:
        files.sort(key=lambda file: file[0])
        ends = np.cumsum([len(data) for _, data in files])
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
        data = np.frombuffer(b"".join(data for _, data in files), np.uint8)
        work.files(np.array([record for record, _ in files], np.uint32), starts, data)
