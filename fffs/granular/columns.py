"""The files of one data set that is written: NewColumns (layout v1, complete or not at all), GrownColumns (v3)."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from fffs.base.descriptors import above_standard
from fffs.base.failures import writing
from fffs.errors import MetadataError, SourceNotFoundError, UsageError, WriteError
from fffs.files.atomic import AtomicFile
from fffs.files.atomic_folder import AtomicFolder, make_folder, refuse_content
from fffs.files.pwrite import NewFile, write_at
from fffs.formats.bag import SUFFIX
from fffs.granular import refs
from fffs.granular import spec as specs
from fffs.granular.spec import Type
from fffs.granular.streams import AppendedBag, RecordStream

Blobs = Sequence[memoryview | list[memoryview]]
"""The blobs of one row: for each key one, or a list for a sequence."""

UNFLUSHED = 1 << 16  # rows after which GrownColumns flushes by itself
FEW = 1024


def refuse_misfit(path: str, key: str, blob: memoryview | list[memoryview], *, sequence: bool) -> None:
    """Raise UsageError where a key that is a sequence gets one blob, or another key a list: no reader would take it."""
    if isinstance(blob, list) != sequence:
        wanted = "a sequence, which needs a list of blobs" if sequence else "no sequence, and needs one blob"
        raise UsageError(f"{path}: {key!r} is {wanted}")


class NewColumns:
    """A data set in layout v1, which appears when it is complete. Not thread-safe."""

    def __init__(self, path: str, spec: dict[str, str]) -> None:
        self.path = path
        try:
            refuse_content(path)
        except UsageError:  # callers expect an OSError, as mkdir(2) would have given
            detail = "a data set in layout v1 is written at once, to a new or empty folder"
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
        """Bytes of all Bags, if they were closed now."""
        return self._refs.size + sum(column.size for column in self._columns)

    def append(self, blobs: Blobs) -> None:
        """Add a row. When this raises, the data set is of no use any more."""
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
        """Give everything to the operating system."""
        for stream in (*self._columns, self._refs):
            stream.drain()

    def complete(self) -> str:
        """Write the tables; nothing can be added any more. The path that the folder has until ``finish``.

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
        """Forget it."""
        self._close_files()
        self._folder.discard()

    def _close_files(self) -> None:
        while self._fds:
            os.close(self._fds.pop())


class GrownColumns:
    """A data set in layout v3, to which rows are added. Not thread-safe.

    Rows count when they are in all columns: a writer that was killed may leave some in a few, which are cut off when
    the data set is opened again.
    """

    def __init__(self, path: str, spec: dict[str, str]) -> None:
        self._bags: list[AppendedBag] = []
        self._unflushed, self._path = 0, path
        self._make(path, spec)
        try:
            for key in spec:
                self._bags.append(AppendedBag(os.path.join(path, key + SUFFIX)))
            self._refuse_lost(path)
            rows = min(bag.found for bag in self._bags)
            for bag in self._bags:
                bag.begin(rows)
        except BaseException:
            self._close()
            raise

    def _make(self, path: str, spec: dict[str, str]) -> None:
        """The folder with its spec.json, or the check that it is the same."""
        if specs.REFS not in spec and os.path.lexists(os.path.join(path, specs.REFS + SUFFIX)):
            raise UsageError(f"{path}: a data set of granular before 0.22, to which nothing can be appended")
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
        """A killed writer leaves columns that differ by what it buffered. More was lost in another way, and may be
        found again. What lies behind rows that all columns have in their tables is nothing that was lost; a column that
        is alone has nothing to vouch for that.
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
        """Bytes of all Bags with their tables, after a flush."""
        return sum(bag.size for bag in self._bags)

    def append(self, blobs: Blobs) -> None:
        """Add a row. When this raises, what was not flushed is of no use any more."""
        for bag, blob in zip(self._bags, blobs, strict=True):
            refuse_misfit(bag.path, os.path.basename(bag.path).removesuffix(SUFFIX), blob, sequence=False)
            bag.append(blob)  # type: ignore[arg-type]  # no list
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
        """Flush. The path of the folder."""
        self.flush()
        return self._path

    def finish(self) -> None:
        """Flush and close."""
        self.flush()
        self._close()

    def discard(self) -> None:
        """Forget what was not flushed."""
        for bag in self._bags:
            bag.rollback()
        self._close()

    def _close(self) -> None:
        for bag in self._bags:
            bag.close()
