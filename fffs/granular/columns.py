"""NewColumns: writes the files of a new data set in layout v1, which appear complete or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from fffs.base.descriptors import above_standard
from fffs.base.failures import writing
from fffs.errors import UsageError, WriteError
from fffs.files.atomic_folder import AtomicFolder, make_folder, refuse_content
from fffs.files.pwrite import NewFile, write_at
from fffs.formats.bag import SUFFIX
from fffs.granular import refs
from fffs.granular import spec as specs
from fffs.granular.record_stream import RecordStream
from fffs.granular.spec import Type

Blobs = Sequence[memoryview | list[memoryview]]
"""The blobs of a row: one per key, or a list for a sequence."""


def create_file(folder: int, path: str) -> NewFile:
    """Create a file in an open folder. path: its path in messages. The caller closes it. Raises WriteError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with writing(path):
        return NewFile(above_standard(os.open(os.path.basename(path), flags, 0o666, dir_fd=folder)), path)


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

    def _create(self, name: str) -> NewFile:
        file = create_file(self._folder.fd, os.path.join(self.path, name))
        self._fds.append(file.fd)
        return file

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
