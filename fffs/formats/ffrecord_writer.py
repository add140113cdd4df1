"""FileWriter: writes an FFRecord file, record by record."""

from __future__ import annotations

import operator
import os
from typing import Any

import numpy as np

from fffs.base.paths import PathLike
from fffs.base.views import readable_bytes
from fffs.errors import UsageError, WriterError
from fffs.files.file import File, UInt8Array
from fffs.formats.ffrecord import encode_header, header_size, load_index, refuse_target
from fffs.formats.record_writer import RecordWriter
from fffs.native import engine
from fffs.records.index import Int64Array, RecordIndex


class FileWriter(RecordWriter):
    """Writes ``n`` records to ``fname``, which appears, complete, when the last of them is written and ``close`` is
    called.

    Leaving the with-block closes the file; leaving it by an exception forgets what was written. Until then nothing is
    visible under ``fname``, and an older file there stays as it is. Not thread-safe; not to be used in a child of fork.

    The bytes are those that HFAiLab/ffrecord writes for the same records.
    """

    def __init__(self, fname: PathLike, n: int) -> None:
        """fname: where the file will be; it must end in ``.ffr``. n: how many records it will have."""
        path = os.fsdecode(fname)
        self.n = operator.index(n)
        refuse_target(path)
        if self.n < 0:
            raise UsageError(f"{path}: the number of records must not be negative, not {self.n}")
        try:
            self._checksums = np.zeros(self.n, np.uint32)
            self._offsets = np.zeros(self.n + 1, np.int64)  # the last one is where all of them end
        except (ValueError, MemoryError):
            raise UsageError(f"{path}: {self.n} records are more than memory can index") from None
        self._offsets[0] = header_size(self.n)
        super().__init__(path, header_size(self.n))

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
        data = readable_bytes(buffer)
        self._checksums[self.count] = engine.crc32(data)
        self._offsets[self.count + 1] = self._offsets[self.count] + data.nbytes
        self._append((data,), data.nbytes)

    def _frame(self, data: UInt8Array, bounds: Int64Array) -> list[Any]:
        first, count = self.count, len(bounds) - 1
        if first + count > self.n:
            raise WriterError(f"{self.fname}: {first + count} records are more than the {self.n} of this writer")
        edges = bounds.tolist()
        for k in range(count):
            self._checksums[first + k] = engine.crc32(data[edges[k] : edges[k + 1]])
        self._offsets[first + 1 : first + count + 1] = self._offsets[first] + bounds[1:] - bounds[0]
        return [data]

    def finish(self) -> None:
        """Write the header. ``close`` does this, and puts the file in place.

        Raises:
            WriterError: fewer than n records were written. Write the rest, then close again; or leave it.
            WriteError: the operating system could not write; an older file is as it was.

        """
        self._need_open()  # before it is counted: of a child of fork, other things are wrong
        if self.count < self.n:
            raise WriterError(
                f"{self.fname}: {self.count} of {self.n} records have been written; write the rest before closing"
            )
        super().finish()

    def _load_index(self, file: File) -> RecordIndex:
        return load_index(file)

    def _finish(self) -> None:
        self._stream.seek(0)
        self._stream.write(encode_header(self._checksums, self._offsets[:-1]))
        super()._finish()
