"""FileWriter: writes an FFRecord file, record by record."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from fffs.base.buffers import readable_bytes
from fffs.errors import UsageError, WriterError
from fffs.files.file import File, UInt8Array
from fffs.formats.ffrecord import encode_header, header_size, load_index, refuse_target
from fffs.formats.record_writer import RecordWriter, Target, path_of
from fffs.native.checksums import crc32
from fffs.records.index import Int64Array, RecordIndex


class FileWriter(RecordWriter):
    """Writes ``n`` records to ``fname``. After the last record, ``close`` puts the complete file in place.

    The end of a with-block closes the writer; an exception in it discards the new file. Until the writer is closed,
    nothing appears at ``fname``, and an older file stays there. Not thread-safe. A forked child must not use it.

    The bytes are those that HFAiLab/ffrecord writes for the same records.

    Examples:
        >>> with fffs.FileWriter("new.ffr", n=2) as writer:
        ...     writer.write_one(b"one")
        ...     writer.write_one(b"two")
        >>> fffs.FileReader("new.ffr").n
        2

    """

    def __init__(self, fname: Target, n: int) -> None:
        """fname: path of the new file, which must end in ``.ffr``. n: its number of records.

        Raises:
            UsageError: wrong suffix, or n is negative or too large. WriteError: the file cannot be created.

        """
        path = path_of(fname)
        self.n = operator.index(n)
        refuse_target(path)
        if self.n < 0:
            raise UsageError(f"{path}: the number of records must not be negative, not {self.n}")
        try:
            self._checksums = np.zeros(self.n, np.uint32)
            self._offsets = np.zeros(self.n + 1, np.int64)  # the last one is the end of all records
        except (ValueError, MemoryError):
            raise UsageError(f"{path}: not enough memory for the index of {self.n} records") from None
        self._offsets[0] = header_size(self.n)
        super().__init__(fname)
        self._guarded(lambda: self._stream.seek(header_size(self.n)))  # ``_finish`` writes the bytes before it

    def write_one(self, buffer: Any) -> None:
        """Append one record: the bytes of any C-contiguous buffer (bytes, bytearray, memoryview, ndarray of any dtype
        and shape).

        Raises:
            WriterError: n records have been written, or the writer is closed.
            TypeError: the argument is not a buffer, or not contiguous.
            WriteError: the operating system could not write; the new file is discarded.

        """
        self._need_unfinished()
        if self.count >= self.n:
            raise WriterError(f"{self.fname}: all {self.n} records have been written; use a writer with a larger n")
        data = readable_bytes(buffer)
        self._checksums[self.count] = crc32(data)
        self._offsets[self.count + 1] = self._offsets[self.count] + data.nbytes
        self._append((data,))

    def _frame(self, data: UInt8Array, bounds: Int64Array) -> list[Any]:
        first, count = self.count, len(bounds) - 1
        if first + count > self.n:
            raise WriterError(f"{self.fname}: {first + count} records are too many for n = {self.n}; use a larger n")
        edges = bounds.tolist()
        for k in range(count):
            self._checksums[first + k] = crc32(data[edges[k] : edges[k + 1]])
        self._offsets[first + 1 : first + count + 1] = self._offsets[first] + bounds[1:] - bounds[0]
        return [data]

    def finish(self) -> None:
        """Write the header. ``close`` calls this and puts the file in place.

        Raises:
            WriterError: fewer than n records were written. Write the rest before closing, or discard the file.
            WriteError: the operating system could not write; an older file is unchanged.

        """
        self._need_open()  # before counting, because it raises another error in a forked child
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
