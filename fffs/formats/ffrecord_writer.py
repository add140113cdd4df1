"""FileWriter: writes an FFRecord file, record by record."""

from __future__ import annotations

import operator
from typing import Any, Final

import numpy as np

from fffs.base.buffers import readable_bytes
from fffs.errors import UsageError, WriterError
from fffs.files.file import File, UInt8Array
from fffs.files.inserting import insert_room, move
from fffs.formats.ffrecord import encode_header, header_size, load_index, refuse_target
from fffs.formats.record_writer import RecordWriter, Target, path_of
from fffs.native.checksums import crc32
from fffs.objects.names import is_url
from fffs.records.index import Int64Array, RecordIndex

RESERVED: Final = 4096  # bytes before the first record while the number of records is unknown
MOVED: Final = 8 << 20  # bytes of records that are always copied, so that no zeros precede them


class FileWriter(RecordWriter):
    """Writes ``n`` records to ``fname``. After the last record, ``close`` puts the complete file in place.

    Without ``n``, the number of records need not be known. The header, of 12 bytes for each record, precedes them, so
    they are moved when it is known: without copying on ext4, XFS and F2FS, which insert blocks; elsewhere, and in files
    of up to 8 MiB, by copying them within the new file, which reads and writes each byte once more. The tables take 12
    bytes of memory for each record, as with a number, or up to twice that. Inserted blocks leave zeros between header
    and records, less than a block and 4 KiB, which readers skip.

    The end of a with-block closes the writer; an exception in it discards the new file. Until the writer is closed,
    nothing appears at ``fname``, and an older file stays there. Not thread-safe. A forked child must not use it.

    With a number, the bytes are those that HFAiLab/ffrecord writes for the same records.

    Examples:
        >>> with fffs.FileWriter("new.ffr", n=2) as writer:
        ...     writer.write_one(b"one")
        ...     writer.write_one(b"two")
        >>> fffs.FileReader("new.ffr").n
        2

    """

    def __init__(self, fname: Target, n: int | None = None) -> None:
        """fname: path of the new file, which must end in ``.ffr``. n: its number of records; None: it is not known.

        Raises:
            UsageError: wrong suffix, or n is negative or too large, or not given for an object in a store. WriteError:
                the file cannot be created.

        """
        path = path_of(fname)
        self.header_checksum = 0
        """Over the checksums of all records, after ``finish``."""
        self.n = None if n is None else operator.index(n)
        refuse_target(path)
        if self.n is not None and self.n < 0:
            raise UsageError(f"{path}: the number of records must not be negative, not {self.n}")
        if self.n is None and is_url(path):
            raise UsageError(f"{path}: an object needs the number of its records, whose table precedes them; give n")
        try:
            self._checksums = np.zeros(self.n or 0, np.uint32)
            self._offsets = np.zeros((self.n or 0) + 1, np.int64)  # the last one is the end of all records
        except (ValueError, MemoryError):
            raise UsageError(f"{path}: not enough memory for the index of {self.n} records") from None
        self._offsets[0] = first = RESERVED if self.n is None else header_size(self.n)
        super().__init__(fname)
        self._guarded(lambda: self._stream.seek(first))  # ``_finish`` writes the bytes before it

    def _make_room(self, count: int) -> None:
        """Have room in the tables for so many records. Raises WriterError: they are more than n."""
        if self.n is not None:
            if count > self.n:
                raise WriterError(f"{self.fname}: {count} records are too many for n = {self.n}; use a larger n")
        elif count > len(self._checksums):
            larger = max(count, 2 * len(self._checksums), 1024)
            self._checksums.resize(larger, refcheck=False)
            self._offsets.resize(larger + 1, refcheck=False)

    def write_one(self, buffer: Any) -> None:
        """Append one record: the bytes of any C-contiguous buffer (bytes, bytearray, memoryview, ndarray of any dtype
        and shape).

        Raises:
            WriterError: n records have been written, or the writer is closed.
            TypeError: the argument is not a buffer, or not contiguous.
            WriteError: the operating system could not write; the new file is discarded.

        """
        self._need_unfinished()
        if self.n is None:
            self._make_room(self.count + 1)
        elif self.count >= self.n:
            raise WriterError(f"{self.fname}: all {self.n} records have been written; use a writer with a larger n")
        data = readable_bytes(buffer)
        self._checksums[self.count] = crc32(data)
        self._offsets[self.count + 1] = self._offsets[self.count] + data.nbytes
        self._append((data,))

    def _frame(self, data: UInt8Array, bounds: Int64Array) -> list[Any]:
        first, count = self.count, len(bounds) - 1
        self._make_room(first + count)
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
        if self.n is not None and self.count < self.n:
            raise WriterError(
                f"{self.fname}: {self.count} of {self.n} records have been written; write the rest before closing"
            )
        super().finish()

    def _load_index(self, file: File) -> RecordIndex:
        return load_index(file)

    def _settle(self) -> None:
        """Move the records behind the space that the header needs, now that their number is known."""
        n, end = self.count, int(self._offsets[self.count])
        self._checksums, self._offsets = self._checksums[:n], self._offsets[: n + 1]
        self.n, shift = n, header_size(n) - RESERVED
        self._stream.flush()
        if end - RESERVED <= MOVED or (shift > 0 and not (inserted := insert_room(self._file, shift))):
            move(self._file, RESERVED, end, RESERVED + shift)
        else:
            shift = inserted if shift > 0 else 0
        self._offsets += shift

    def _finish(self) -> None:
        if self.n is None:
            self._settle()
        header = encode_header(self._checksums, self._offsets[:-1])
        self.header_checksum = int.from_bytes(header[:4], "little")
        self._stream.seek(0)
        self._stream.write(header)
        super()._finish()
