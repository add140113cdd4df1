"""RecordWriter: a record file that is written from its begin to its end, and appears complete or not at all."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from fffs.base.paths import PathLike
from fffs.base.withblock import Writing, closed_on_error
from fffs.errors import WriteError
from fffs.files.atomic import AtomicFile
from fffs.files.file import File, UInt8Array
from fffs.files.pwrite import PIECES, write_at
from fffs.records.index import Int64Array, RecordIndex
from fffs.records.source_file import SourceFile


class RecordWriter(Writing):
    """What the writers of all formats share. Not thread-safe; not to be used in a child of fork."""

    def __init__(self, fname: PathLike, begin: int = 0) -> None:
        """fname: where the file will be. begin: of the first record, behind what ``_finish`` writes."""
        self.fname = os.fsdecode(fname)
        self.count = 0
        self._finished = False
        self._file = AtomicFile(self.fname)
        self._stream = io.BufferedWriter(io.FileIO(self._file.fd, "wb", closefd=False), buffer_size=1 << 20)
        self._begin(self.fname)
        if begin:
            self._guarded(lambda: self._stream.seek(begin))

    def _append(self, pieces: Iterable[bytes | memoryview], size: int) -> None:
        """Write what a record consists of, about size bytes, and count it. Not by ``_guarded``: each record would pay
        for the call.
        """
        try:
            self._stream.writelines(pieces)
            self.count += 1
            self._file.early.wrote(size)
        except BaseException as error:
            self._fail(error)

    def write_batch(self, data: UInt8Array, bounds: Int64Array) -> None:
        """Append records that lie one after another in memory: record i is ``data[bounds[i]:bounds[i + 1]]``, and all
        of data belongs to one. They are not copied on their way to the operating system.

        Raises what ``write_one`` raises.
        """
        self._need_open()
        pieces = self._frame(data, bounds)
        self._guarded(lambda: self._write_through(pieces))
        self.count += len(bounds) - 1

    def _frame(self, data: UInt8Array, bounds: Int64Array) -> list[Any]:
        """What a batch of records consists of in the file, as buffers of bytes."""
        raise NotImplementedError

    def _write_through(self, pieces: list[Any]) -> None:
        """Write buffers past the stream's own, in which what is appended one by one is collected."""
        self._stream.flush()
        begin = place = self._stream.tell()
        for k in range(0, len(pieces), PIECES):
            place += write_at(self._file, pieces[k : k + PIECES], place)
        self._stream.seek(place)
        self._file.early.wrote(place - begin)

    def _guarded(self, write: Callable[[], object]) -> None:
        try:
            write()
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> NoReturn:
        """What a write failed of, or was interrupted by: the whole file is forgotten, because nobody could say how much
        of a record is in it.
        """
        self.discard()
        if isinstance(error, OSError):
            raise WriteError(error.errno, self.fname) from error
        raise error

    def close(self) -> None:
        """Put the file in place. May be called again. Raises WriteError, and then an older file is as it was."""
        if self.closed:
            return
        self.finish()
        self.closed = True
        self._commit()

    def keep_existing(self) -> None:
        """Have ``close`` fail if another file has the name by then."""
        self._file.replaces = False

    def finish(self) -> None:
        """Write what is still missing; nothing can be appended any more. The file is not in place before ``close``.

        Raises WriteError. May be called again.
        """
        self._need_open()
        if not self._finished:
            self._guarded(self._finish)
            self._finished = True

    def reread(self) -> SourceFile:
        """The finished file, read back from the disk before it is in place. The caller closes it.

        Raises WriteError, ReadError, and FormatError: its index is damaged.
        """
        self.finish()
        file = self._file.reread()
        with closed_on_error((file,)):
            return SourceFile(file, self._load_index(file))

    def _load_index(self, file: File) -> RecordIndex:
        """The index of this file, which has not its name yet."""
        raise NotImplementedError

    def _finish(self) -> None:
        """Write what is still missing, and give all of it to the operating system."""
        self._stream.flush()

    def _commit(self) -> None:
        self._file.commit()

    def _forget(self) -> None:
        try:
            self._let_go()
        finally:
            self._file.discard()

    def _let_go(self) -> None:
        self._stream.raw.close()  # which leaves the descriptor open, and takes no more from the stream's buffer
