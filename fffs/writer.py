"""FileWriter: writes an FFRecord file, record by record."""

from __future__ import annotations

import io
import operator
import os
from typing import Any

import numpy as np

from fffs import engine
from fffs.atomic import AtomicFile
from fffs.errors import UsageError, WriteError, WriterError
from fffs.formats.ffrecord import SUFFIX, encode_header, header_size
from fffs.withblock import Writing


class FileWriter(Writing):
    """Writes ``n`` records to ``fname``, which appears, complete, when the last of them is written and ``close`` is
    called.

    Leaving the with-block closes the file; leaving it by an exception forgets what was written. Until then nothing is
    visible under ``fname``, and an older file there stays as it is. Not thread-safe; not to be used in a child of fork.

    The bytes are those that HFAiLab/ffrecord writes for the same records.
    """

    def __init__(self, fname: str | bytes | os.PathLike[Any], n: int) -> None:
        """fname: where the file will be; it must end in ``.ffr``. n: how many records it will have."""
        self.fname = os.fsdecode(fname)
        self.n = operator.index(n)
        self.count = 0
        if not self.fname.endswith(SUFFIX):
            raise UsageError(f"{self.fname}: the name of a record file must end in {SUFFIX}")
        if self.n < 0:
            raise UsageError(f"{self.fname}: the number of records must not be negative, not {self.n}")
        try:
            self._checksums = np.zeros(self.n, np.uint32)
            self._offsets = np.zeros(self.n, np.int64)
        except (ValueError, MemoryError):
            raise UsageError(f"{self.fname}: {self.n} records are more than memory can index") from None
        self._position = header_size(self.n)
        self._file = AtomicFile(self.fname)
        self._stream = io.BufferedWriter(io.FileIO(self._file.fd, "wb", closefd=False), buffer_size=1 << 20)
        self._begin(self.fname)
        self._guarded(lambda: self._stream.seek(self._position))

    def _guarded(self, write: Any) -> None:
        """Run a write; when it fails or is interrupted, the whole file is forgotten: nobody could say how much of a
        record is in it.
        """
        try:
            write()
        except BaseException as error:
            self.discard()
            if isinstance(error, OSError):
                raise WriteError(error.errno, self.fname) from error
            raise

    def write_one(self, buffer: Any) -> None:
        """Append one record: the bytes of any C-contiguous buffer (bytes, bytearray, memoryview, ndarray of any dtype
        and shape).

        Raises:
            WriterError: n records were written already, or the writer is closed.
            TypeError: it is no buffer, or not contiguous.
            WriteError: the operating system could not write; nothing will appear under the name.

        """
        self._need_open()
        if self.count >= self.n:
            raise WriterError(f"{self.fname}: all {self.n} records have been written; make the writer with a larger n")
        data = as_bytes(buffer)
        self._checksums[self.count] = engine.crc32(data)
        self._offsets[self.count] = self._position
        self._guarded(lambda: self._append(data))

    def _append(self, data: memoryview) -> None:
        self._stream.write(data)
        self._position += data.nbytes
        self.count += 1
        self._file.early.wrote(data.nbytes)

    def close(self) -> None:
        """Write the header and put the file in place. May be called again.

        Raises:
            WriterError: fewer than n records were written. Write the rest, then close again; or leave it.
            WriteError: the operating system could not write; an older file is as it was.

        """
        if self.closed:
            return
        self._need_open()
        if self.count < self.n:
            raise WriterError(
                f"{self.fname}: {self.count} of {self.n} records have been written; write the rest before closing"
            )

        def finish() -> None:
            self._stream.seek(0)
            self._stream.write(encode_header(self._checksums, self._offsets))
            self._stream.flush()

        self._guarded(finish)
        self.closed = True
        self._file.commit()

    def _forget(self) -> None:
        try:
            self._let_go()
        finally:
            self._file.discard()

    def _let_go(self) -> None:
        self._stream.raw.close()  # which leaves the descriptor open, and takes no more from the stream's buffer


def as_bytes(buffer: Any) -> memoryview:
    """A contiguous buffer's bytes, without a copy. Raises TypeError for anything else."""
    if isinstance(buffer, np.ndarray):
        if buffer.dtype.hasobject:
            raise TypeError("a record must be bytes: an array of objects holds addresses, not contents")
        if not buffer.flags.c_contiguous:
            raise TypeError("a record must be C-contiguous; use numpy.ascontiguousarray")
        # Not memoryview(buffer): dates and other dtypes have no buffer format.
        buffer = buffer.reshape(-1).view(np.uint8) if buffer.nbytes else b""
    try:
        view = memoryview(buffer)
    except TypeError:
        raise TypeError(f"a record must be bytes, an array or another buffer, not {type(buffer).__name__}") from None
    if not view.c_contiguous:
        raise TypeError("a record must be C-contiguous; use numpy.ascontiguousarray")
    return view.cast("B") if view.nbytes else memoryview(b"")
