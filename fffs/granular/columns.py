"""Writes the files of a data set: NewColumns (layout v1, complete or not at all), GrownColumns (v3, appending)."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from fffs.base.descriptors import above_standard
from fffs.base.failures import writing
from fffs.errors import MetadataError, SourceNotFoundError, UsageError, WriteError
from fffs.files.atomic import PLACE, AtomicFile
from fffs.files.atomic_folder import AtomicFolder, make_folder, refuse_content
from fffs.files.dirfd import close
from fffs.files.pwrite import NewFile, write_at
from fffs.formats.bag import SUFFIX
from fffs.granular import refs
from fffs.granular import spec as specs
from fffs.granular.bag_streams import AppendedBag, RecordStream
from fffs.granular.spec import Type

Blobs = Sequence[memoryview | list[memoryview]]
"""The blobs of a row: one per key, or a list for a sequence."""

UNFLUSHED = 1 << 16  # rows after which GrownColumns flushes by itself
FEW = 1024


def refuse_misfit(path: str, key: str, blob: memoryview | list[memoryview], *, sequence: bool) -> None:
    """Raise UsageError if a sequence gets a single blob, or another key gets a list. No reader could read either."""
    if isinstance(blob, list) != sequence:
        wanted = "a sequence and needs a list of blobs" if sequence else "not a sequence and needs a single blob"
        raise UsageError(f"{path}: {key!r} is {wanted}")


class NewColumns:
    """A new data set in layout v1, which appears when it is complete. Not thread-safe."""

    def __init__(self, path: str, spec: dict[str, str]) -> None:
        self.path = path
        try:
            refuse_content(path)
        except UsageError:  # callers expect an OSError, as from mkdir(2)
            detail = "a data set in layout v1 needs a new or empty folder"
            raise WriteError(errno.EEXIST, path, detail) from None
        make_folder(os.path.dirname(path.rstrip("/")) or ".")
        self._folder = AtomicFolder(path, path)
        self._fds: list[int] = []
        try:
            self._spec = self._create(specs.NAME)
            self._spec_bytes = specs.encode(spec)
            self._sequences = {key: Type.parse(kind).sequence for key, kind in spec.items()}
            self._columns = [RecordStream(self._create(key + SUFFIX)) for key in spec]
            self._refs = RecordStream(self._create(specs.REFS + SUFFIX))
        except BaseException:
            self.discard()
            raise

    def _name(self, name: str) -> str:
        return os.path.join(self.path, name)

    def _create(self, name: str) -> NewFile:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with writing(self._name(name)):
            fd = above_standard(os.open(name.encode(), flags, 0o666, dir_fd=self._folder.fd))
        self._fds.append(fd)
        return NewFile(fd, self._name(name))

    def __len__(self) -> int:
        return len(self._refs.ends)

    @property
    def size(self) -> int:
        """The size in bytes that all Bags would have if they were closed now."""
        return self._refs.size + sum(column.size for column in self._columns)

    def append(self, blobs: Blobs) -> None:
        """Add a row. If this raises, the data set must be discarded."""
        for (key, sequence), blob in zip(self._sequences.items(), blobs, strict=True):
            refuse_misfit(self.path, key, blob, sequence=sequence)
        row: list[refs.Ref] = []
        for column, blob in zip(self._columns, blobs, strict=True):
            first = len(column.ends)
            row.append((first, len(blob)) if isinstance(blob, list) else first)
            for data in blob if isinstance(blob, list) else [blob]:
                column.append(data)
        self._refs.append(memoryview(refs.encode(row)))

    def flush(self) -> None:
        """Pass all data to the operating system."""
        for stream in (*self._columns, self._refs):
            stream.drain()

    def complete(self) -> str:
        """Write the tables. No row can be added afterwards. Returns the path that the folder has until ``finish``.

        Raises WriteError.
        """
        with writing(self.path):
            here = self._folder.find()
        if not self._fds:
            return here
        write_at(self._spec, [self._spec_bytes], 0)
        for stream in (*self._columns, self._refs):
            stream.finish()
        self._close_files()
        return here

    def finish(self) -> None:
        """Write the tables and put the folder in place. Raises WriteError."""
        self.complete()
        self._folder.commit()

    def discard(self) -> None:
        """Delete the data set."""
        self._close_files()
        self._folder.discard()

    def _close_files(self) -> None:
        while self._fds:
            os.close(self._fds.pop())


class GrownColumns:
    """A data set in layout v3, to which rows are appended. Not thread-safe.

    A row exists once it is in all columns. A killed writer may leave rows in only some columns; these are cut off when
    the data set is opened for appending again.
    """

    def __init__(self, path: str, spec: dict[str, str]) -> None:
        self._bags: list[AppendedBag] = []
        self._unflushed, self._path = 0, path
        self._make(path, spec)
        with writing(path):
            self._folder = above_standard(os.open(path, PLACE))
        try:
            for key in spec:
                self._bags.append(AppendedBag(os.path.join(path, key + SUFFIX), self._folder))
            self._refuse_lost(path)
            rows = min(bag.found for bag in self._bags)
            for bag in self._bags:
                bag.begin(rows)
        except BaseException:
            self._close()
            raise

    def _make(self, path: str, spec: dict[str, str]) -> None:
        """Create the folder with its spec.json, or check that an existing spec is equal."""
        if specs.REFS not in spec and os.path.lexists(os.path.join(path, specs.REFS + SUFFIX)):
            raise UsageError(f"{path}: cannot append to a data set of granular before 0.22; write a new one")
        make_folder(path)
        try:
            found = specs.load(path)
        except SourceNotFoundError:
            with AtomicFile(os.path.join(path, specs.NAME)) as file:
                write_at(file, [specs.encode(spec)], 0)
                file.commit()
            return
        if found != spec:
            raise UsageError(f"{path}: a data set with another spec: {found}"[:500])

    def _refuse_lost(self, path: str) -> None:
        """Raise MetadataError if columns differ by more rows than a killed writer had buffered: those were lost in
        another way, and may be recovered. Data after the rows that are in the tables of all columns is no loss; if
        there is only one column, ``AppendedBag.refuse_lost`` checks that data instead.
        """
        if len(self._bags) == 1:
            self._bags[0].refuse_lost()
        found = [bag.found for bag in self._bags]
        if max(found) - min(found) > (UNFLUSHED if min(found) else FEW):
            bag = self._bags[found.index(min(found))]
            raise MetadataError(
                f"{bag.path}: {min(found)} records, but other columns of {path} have {max(found)}; copy it again"
            )

    def __len__(self) -> int:
        return len(self._bags[0])

    @property
    def size(self) -> int:
        """The size in bytes that all Bags with their tables have after a flush."""
        return sum(bag.size for bag in self._bags)

    def append(self, blobs: Blobs) -> None:
        """Add a row. If this raises, rows that were not flushed must be discarded."""
        for bag, blob in zip(self._bags, blobs, strict=True):
            refuse_misfit(bag.path, os.path.basename(bag.path).removesuffix(SUFFIX), blob, sequence=False)
            bag.append(blob)  # type: ignore[arg-type]  # not a list
        self._unflushed += 1
        if self._unflushed == UNFLUSHED:
            self.flush()

    def flush(self) -> None:
        """Make all rows permanent and visible."""
        for bag in self._bags:
            bag.write_records()
        for bag in self._bags:
            bag.write_table()
        for bag in self._bags:
            bag.keep()
        self._unflushed = 0

    def complete(self) -> str:
        """Flush. Returns the path of the folder."""
        self.flush()
        return self._path

    def finish(self) -> None:
        """Flush and close."""
        self.flush()
        self._close()

    def discard(self) -> None:
        """Discard rows that were not flushed."""
        for bag in self._bags:
            bag.rollback()
        self._close()

    def _close(self) -> None:
        for bag in self._bags:
            bag.close()
        if self._folder >= 0:
            close(self._folder)
        self._folder = -1
