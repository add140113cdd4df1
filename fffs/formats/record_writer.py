"""RecordWriter: a record file that is written from its begin to its end, and appears complete or not at all."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable
from typing import NoReturn

from fffs.base.paths import PathLike
from fffs.base.withblock import Writing
from fffs.errors import WriteError
from fffs.files.atomic import AtomicFile


class RecordWriter(Writing):
    """What the writers of all formats share. Not thread-safe; not to be used in a child of fork."""

    def __init__(self, fname: PathLike, begin: int = 0) -> None:
        """fname: where the file will be. begin: of the first record, behind what ``_finish`` writes."""
        self.fname = os.fsdecode(fname)
        self.count = 0
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
        self._need_open()
        self._guarded(self._finish)
        self.closed = True
        self._file.commit()

    def _finish(self) -> None:
        """Write what is still missing, and give all of it to the operating system."""
        self._stream.flush()

    def _forget(self) -> None:
        try:
            self._let_go()
        finally:
            self._file.discard()

    def _let_go(self) -> None:
        self._stream.raw.close()  # which leaves the descriptor open, and takes no more from the stream's buffer
