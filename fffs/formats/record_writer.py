"""RecordWriter: writes a record file from start to end. The file appears complete or not at all."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from fffs.base.importing import importing
from fffs.base.paths import PathLike
from fffs.base.withblock import Writing, closed_on_error
from fffs.errors import FffsError, WriteError, WriterError
from fffs.files.atomic_output import AtomicOutput
from fffs.files.file import File, UInt8Array
from fffs.files.pwrite import PIECES, write_at
from fffs.records.index import Int64Array, RecordIndex
from fffs.records.source_file import SourceFile

Target = PathLike | AtomicOutput
"""The path of a new file, or one that is open already, which the writer takes over."""


def path_of(target: Target) -> str:
    """Return the path of a new file."""
    return os.fsdecode(target) if isinstance(target, (str, bytes, os.PathLike)) else target.path


def _output(path: PathLike) -> AtomicOutput:
    with importing:
        from fffs.objects.new_object import new_output  # imported late: readers, which know all formats, write nothing
    return new_output(path)


class RecordWriter(Writing):
    """Base class of the writers of all formats. Not thread-safe. A forked child must not use it."""

    def __init__(self, fname: Target) -> None:
        """fname: path of the new file."""
        self.fname = path_of(fname)
        self.count = 0
        self._finished = False
        self._file = _output(fname) if isinstance(fname, (str, bytes, os.PathLike)) else fname
        self._stream = io.BufferedWriter(self._file.raw(), buffer_size=1 << 20)
        self._begin(self.fname)

    def _append(self, pieces: Iterable[bytes | memoryview]) -> None:
        """Write the pieces of a record, and count it. Does not use ``_guarded``, for speed."""
        try:
            self._stream.writelines(pieces)
            self.count += 1
        except BaseException as error:
            self._fail(error)

    def write_batch(self, data: UInt8Array, bounds: Int64Array) -> None:
        """Append records from memory without copying them. Raises what ``write_one`` raises.

        data: uint8[bytes], only the records, one after another. bounds: int64[k + 1], record i is
        ``data[bounds[i]:bounds[i + 1]]``.
        """
        self._need_unfinished()
        pieces = self._frame(data, bounds)
        self._guarded(lambda: self._write_through(pieces))
        self.count += len(bounds) - 1

    def _frame(self, data: UInt8Array, bounds: Int64Array) -> list[Any]:
        """Return the buffers that a batch of records consists of in the file."""
        raise NotImplementedError

    def _write_through(self, pieces: list[Any]) -> None:
        """Write buffers directly to the file. The stream's own buffer collects records that are appended singly."""
        self._stream.flush()
        place = self._stream.tell()
        for k in range(0, len(pieces), PIECES):
            done = write_at(self._file, pieces[k : k + PIECES], place)
            self._file.wrote(place, done)
            place += done
        self._stream.seek(place)

    def _guarded(self, write: Callable[[], object]) -> None:
        try:
            write()
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> NoReturn:
        """Discard the file after a failed or interrupted write, which may have written part of a record, and raise."""
        self.discard()
        if isinstance(error, OSError) and not isinstance(error, FffsError):
            raise WriteError(error.errno, self.fname) from error
        raise error

    def close(self) -> None:
        """Put the file in place. May be called again. Raises WriteError; an older file is then unchanged, unless the
        error says that the new one is in place.
        """
        if self.closed:
            return
        self.finish()
        self.closed = True
        try:
            self._commit()
        finally:
            self._let_go()

    def expect_size(self, total: int) -> None:
        """Set about how many bytes all records have with what is around them. Call it before the first record."""
        self._file.expect_size(total)

    def keep_existing(self) -> None:
        """Let ``close`` fail if another file has the name by then, instead of replacing that file."""
        self._file.replaces = False

    def _need_unfinished(self) -> None:
        self._need_open()
        if self._finished:
            raise WriterError(f"{self.fname}: the writer has been finished; it takes no more records")

    def finish(self) -> None:
        """Write the remaining bytes. No record can be appended afterwards; ``close`` puts the file in place.

        Raises WriteError. May be called again.
        """
        self._need_open()
        if not self._finished:
            self._guarded(self._finish)
            self._finished = True

    def reread(self) -> SourceFile:
        """Open the finished file before it is in place, reading it back from the disk. The caller closes it.

        Raises WriteError, ReadError, and FormatError if its index is damaged.
        """
        self.finish()
        file = self._file.reread()
        with closed_on_error((file,)):
            return SourceFile(file, self._load_index(file))

    def _load_index(self, file: File) -> RecordIndex:
        """Load the index of this file, which does not have its name yet."""
        raise NotImplementedError

    def _finish(self) -> None:
        """Write the remaining bytes and flush everything to the operating system."""
        self._stream.flush()

    def _commit(self) -> None:
        self._file.commit()

    def _forget(self) -> None:
        try:
            self._let_go()
        finally:
            self._file.discard()

    def _let_go(self) -> None:
        self._stream.raw.close()  # leaves the descriptor open, and prevents flushing the stream's buffer later
