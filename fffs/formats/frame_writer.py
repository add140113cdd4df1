"""FrameWriter: writes a file of frames, which appears complete or not at all."""

from __future__ import annotations

import io
import os
from typing import Any

from fffs.atomic import AtomicFile
from fffs.errors import WriteError
from fffs.withblock import Writing
from fffs.writer import as_bytes


class FrameWriter(Writing):
    """Writes records to ``fname``, which appears, complete, when ``close`` is called.

    Leaving the with-block closes the file; leaving it by an exception forgets what was written. Until then nothing is
    visible under ``fname``, and an older file there stays as it is. Not thread-safe; not to be used in a child of fork.
    """

    def __init__(self, fname: str | bytes | os.PathLike[Any]) -> None:
        """fname: where the file will be."""
        self.fname = os.fsdecode(fname)
        self.count = 0
        self._file = AtomicFile(self.fname)
        self._stream = io.BufferedWriter(io.FileIO(self._file.fd, "wb", closefd=False), buffer_size=1 << 20)
        self._begin(self.fname)

    def _around(self, data: memoryview) -> tuple[bytes, bytes]:
        """What a frame has before and behind its data."""
        raise NotImplementedError

    def write_one(self, buffer: Any) -> None:
        """Append one record: the bytes of any C-contiguous buffer.

        Raises:
            WriterError: the writer is closed.
            TypeError: it is no buffer, or not contiguous.
            WriteError: the operating system could not write; nothing will appear under the name.

        """
        self._need_open()
        data = as_bytes(buffer)
        head, tail = self._around(data)
        try:
            self._stream.write(head)
            self._stream.write(data)
            self._stream.write(tail)
            self.count += 1
            self._file.early.wrote(data.nbytes)
        except BaseException as error:
            self._fail(error)

    def close(self) -> None:
        """Put the file in place. May be called again. Raises WriteError, and then an older file is as it was."""
        if self.closed:
            return
        self._need_open()
        try:
            self._stream.flush()
        except BaseException as error:
            self._fail(error)
        self.closed = True
        self._file.commit()

    def _fail(self, error: BaseException) -> None:
        """Forget the file: nobody could say how much of a record is in it."""
        self.discard()
        if isinstance(error, OSError):
            raise WriteError(error.errno, self.fname) from error
        raise error

    def _forget(self) -> None:
        try:
            self._let_go()
        finally:
            self._file.discard()

    def _let_go(self) -> None:
        self._stream.raw.close()  # which leaves the descriptor open, and takes no more from the stream's buffer
