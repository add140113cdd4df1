"""What is exported: the entries of a packed folder, or records, which get numbers as names; and their bytes."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from fffs.base.jobs import Jobs
from fffs.converting.records import BATCH_BYTES, RecordSource
from fffs.errors import UsageError
from fffs.layouts.plain import number_names
from fffs.layouts.samples import split_name
from fffs.layouts.view import TreeView
from fffs.native.engine import BLOCK
from fffs.tree.tree import NAME_MAX, ROOT, UInt8Array

PIECE: Final = 4 << 20  # bytes of a large file that are read at a time
TOGETHER: Final = 1 << 14  # the most files that are read in one batch

Buffer = bytes | UInt8Array
Head = TypeVar("Head")


class ExportEntry(NamedTuple):
    """A name, and what it refers to.

    ``path``: relative; empty for the root. ``mode``: with the type. ``mtime``: nanoseconds since 1970. ``node``: the
    same for all names of one file or symbolic link, of which there are ``names``. ``record``: of a file. ``target``:
    of a symbolic link.
    """

    path: bytes
    mode: int
    size: int
    mtime: int
    node: int
    names: int = 1
    record: int = -1
    target: bytes = b""


class ExportReading(Protocol):
    """One pass over the bytes of files."""

    def read(self, items: Iterable[tuple[Head, ExportEntry | None]]) -> Iterator[tuple[Head, Iterable[Buffer]]]:
        """Yield each head with the bytes of its file, in pieces, or without any for None. Several calls, one after the
        other, have all files in order. Raises as reading the source.
        """

    def finish(self) -> None:
        """Raise SourceChangedError if the source has further files."""


class Exported(Protocol):
    """What is exported. ``shown``: its name in messages. ``files`` and ``total_bytes``: of all names of files."""

    shown: str
    files: int
    total_bytes: int

    def entries(self) -> Iterator[ExportEntry]:
        """Yield all entries: each folder, then its files, then its subfolders. So samples are not interrupted."""

    def reading(self) -> contextlib.AbstractContextManager[ExportReading]:
        """Begin a pass over the bytes."""


def groups_of(entries: Iterable[ExportEntry]) -> Iterator[list[ExportEntry]]:
    """Yield entries that belong into one file: those of a sample, after the folder that they are the first of."""
    group: list[ExportEntry] = []
    key: bytes | None = None
    for entry in entries:
        named = None if stat.S_ISDIR(entry.mode) else split_name(entry.path)
        follows = stat.S_ISDIR(group[-1].mode) if group else True
        if not follows and (named is None or named[0] != key):
            yield group
            group = []
        group.append(entry)
        key = named[0] if named else None
    if group:
        yield group


def counts_of(bounds: Sequence[int]) -> Iterator[int | None]:
    """Return the numbers of items in each part; None: all that follow. bounds: the first items of all but the first."""
    return iter([*np.diff([0, *bounds]).tolist(), None])


class WholeFiles:
    """A pass over files, one part after the other, each file with all of its bytes."""

    def __init__(
        self, entries: Iterator[ExportEntry], bounds: Sequence[int], reading: ExportReading, work: Jobs
    ) -> None:
        """entries: files only. bounds: the first ones of all parts but the first."""
        self._entries, self._counts, self._reading, self._work = entries, counts_of(bounds), reading, work

    def next_part(self) -> Iterator[tuple[ExportEntry, bytes]]:
        """Yield the files of the next part, with their bytes. Raises as reading the source."""
        entries = itertools.islice(self._entries, next(self._counts))
        for entry, pieces in self._reading.read((entry, entry) for entry in entries):
            yield entry, b"".join(memoryview(piece) for piece in pieces)
            self._work.count(entry.size)


# ---------------------------------------------------------------- a packed folder


class ExportedPack:
    """The files of a packed folder, or of a set of them. The caller closes the view."""

    def __init__(self, view: TreeView, shown: str) -> None:
        self.view, self.shown = view, shown
        tree = view.tree
        nodes = tree.entry_nodes[tree.kinds[tree.entry_nodes] == stat.S_IFREG]
        self.files = len(nodes)
        self.total_bytes = self._bytes_of(nodes)

    @property
    def has_links(self) -> bool:
        """Whether there are symbolic links, or files with several names."""
        kinds = self.view.tree.kinds
        return bool((kinds == stat.S_IFLNK).any() or (self.view.tree.nlink[kinds == stat.S_IFREG] > 1).any())

    @property
    def own_bytes(self) -> int:
        """The bytes of all files, each counted once."""
        return self._bytes_of(np.flatnonzero(self.view.tree.kinds == stat.S_IFREG))

    def _bytes_of(self, nodes: npt.NDArray[np.integer[Any]]) -> int:
        return int(self.view.store.lengths(self.view.tree.ref[nodes].astype(np.int64)).sum())

    def entries(self) -> Iterator[ExportEntry]:
        """As in ``Exported``."""
        tree, stack = self.view.tree, [(b"", ROOT)]
        while stack:
            path, folder = stack.pop()
            yield self._entry(path, folder)
            inner = []
            for name, node in tree.entries(folder):
                full = path + b"/" + name if path else name
                if tree.is_dir(node):
                    inner.append((full, node))
                else:
                    yield self._entry(full, node)
            stack += reversed(inner)

    def _entry(self, path: bytes, node: int) -> ExportEntry:
        tree = self.view.tree
        mode, mtime = int(tree.mode[node]), int(tree.mtime[node])
        names = int(tree.nlink[node])
        if stat.S_ISREG(mode):
            record = tree.record(node)
            return ExportEntry(path, mode, self.view.store.length(record), mtime, node, names, record)
        if stat.S_ISLNK(mode):
            return ExportEntry(path, mode, 0, mtime, node, names, target=tree.target(node))
        return ExportEntry(path, mode, 0, mtime, node)

    @contextlib.contextmanager
    def reading(self) -> Iterator[ExportReading]:
        """As in ``Exported``."""
        yield _PackReading(self.view)


class _PackReading:
    """Reads small files in batches, and large ones in pieces."""

    def __init__(self, view: TreeView) -> None:
        self._store = view.store

    def read(self, items: Iterable[tuple[Head, ExportEntry | None]]) -> Iterator[tuple[Head, Iterable[Buffer]]]:
        waiting: list[tuple[Head, ExportEntry | None]] = []
        size = 0
        for head, entry in items:
            large = entry is not None and entry.size > BLOCK
            if large or size >= BATCH_BYTES or len(waiting) >= TOGETHER:
                yield from self._read_together(waiting)
                waiting, size = [], 0
            if entry is not None and large:
                yield head, self._pieces(entry)
            else:
                waiting.append((head, entry))
                size += entry.size if entry else 0
        yield from self._read_together(waiting)

    def _read_together(self, items: list[tuple[Head, ExportEntry | None]]) -> Iterator[tuple[Head, Iterable[Buffer]]]:
        data, offsets = self._store.read_joined([entry.record for _, entry in items if entry])
        bounds, k = offsets.tolist(), 0
        for head, entry in items:
            yield head, (data[bounds[k] : bounds[k + 1]],) if entry else ()
            k += entry is not None

    def _pieces(self, entry: ExportEntry) -> Iterator[Buffer]:
        for at in range(0, entry.size, PIECE):
            yield self._store.read_range(entry.record, at, at + PIECE)

    def finish(self) -> None:
        pass


# ---------------------------------------------------------------- records


class ExportedRecords:
    """Records, which are shown as files ``000000.KEY`` and on. The caller closes the source."""

    def __init__(self, records: RecordSource, key: str, threads: int) -> None:
        """Raises UsageError: the key cannot be the ending of a name."""
        self._records, self.shown, self.key, self._threads = records, records.shown, key, threads
        self._ending = b"." + os.fsencode(key)
        if not key or len(self._ending) > NAME_MAX // 2 or {b"/", b"\0"} & {bytes([c]) for c in self._ending}:
            raise UsageError(f"--key {key!r}: cannot be the ending of a file name; choose another one")
        self.files, self.total_bytes = len(records.lengths), int(records.lengths.sum())

    def entries(self) -> Iterator[ExportEntry]:
        """As in ``Exported``."""
        lengths = self._records.lengths
        for k, name in enumerate(number_names(len(lengths))):
            yield ExportEntry(name + self._ending, stat.S_IFREG | 0o644, int(lengths[k]), 0, k, record=k)

    @contextlib.contextmanager
    def reading(self) -> Iterator[ExportReading]:
        """As in ``Exported``."""
        with contextlib.closing(self._records.batches((), self._threads)) as batches:
            with contextlib.closing(_each(batches)) as records:
                yield _RecordReading(records)


def _each(batches: Iterable[Iterable[UInt8Array]]) -> Generator[UInt8Array, None, None]:
    for batch in batches:
        yield from batch
        del batch


class _RecordReading:
    """Reads records in their order."""

    def __init__(self, records: Iterator[UInt8Array]) -> None:
        self._records = records

    def read(self, items: Iterable[tuple[Head, ExportEntry | None]]) -> Iterator[tuple[Head, Iterable[Buffer]]]:
        for head, entry in items:
            yield head, () if entry is None else (next(self._records),)

    def finish(self) -> None:
        next(self._records, None)
