"""ResumedBag: appends to a Bag of two files the records that a stopped writer had begun to append, and then more."""

from __future__ import annotations

import os
import shlex
import time
from typing import Final

from fffs.base.failures import writing
from fffs.errors import UsageError
from fffs.files.pwrite import NewFile
from fffs.formats.bag import OFFSET
from fffs.granular.bag_streams import AppendedBag
from fffs.granular.record_stream import GrowingStream, RecordStream

PAUSE: Final = 0.1  # seconds


class _ComparingStream(GrowingStream):
    """Writes over bytes that a stopped writer left, but only the same ones."""

    def __init__(self, file: NewFile, end: int, folder: int, left: int) -> None:
        """left: the size of the file, which is at least ``end``."""
        super().__init__(file, end, folder)
        self._begin, self._left = end, left

    def _write(self, data: memoryview | bytearray) -> None:
        count = min(len(data), self._left - self._written)
        if count > 0:
            with writing(self.file.path):
                found = os.pread(self.file.fd, count, self._written)
            if found != bytes(data[: len(found)]):
                raise UsageError(
                    f"{self.file.path}: the new record does not match the {self._left - self._begin} bytes that a "
                    "stopped writer left after the last complete record; append what that one appended, or cut them "
                    f"off: truncate -s {self._begin} {shlex.quote(self.file.path)}"
                )
        RecordStream._write(self, data)


class ResumedBag(AppendedBag):
    """A Bag in layout v3 to which granular's writers may have appended, too. Locked against other writers of fffs.

    Bytes after the complete records are what a stopped writer had not flushed. They are neither cut off nor trusted:
    records that are appended must be the same. That also holds for a Bag without a table, all of whose bytes are
    taken for such records; it gets a table only after this comparison, as the Bag may be one of another layout. As
    ``AppendedBag`` otherwise, without ``begin``. Not thread-safe.

    Flushes may come thousands of times a second, so what other programs did is looked at only from time to time, and
    before ``finish``.
    """

    may_lack_table = True
    _looked = 0.0

    def __init__(self, path: str, place: int | None = None) -> None:
        """place: its folder, if that is open already. Raises as AppendedBag, and UsageError for a truncated Bag."""
        super().__init__(path, place)
        try:
            with writing(path):
                self._left = os.fstat(self._bag).st_size
            self.begin(self.found, asked=True)
            file = NewFile(self._bag, path)
            self._stream = _ComparingStream(file, self._kept_end, self._folder, self._left)
        except BaseException:
            self.close()
            raise

    def _sizes(self) -> tuple[tuple[int, int], ...]:
        """As in AppendedBag, but with the bytes that were left."""
        (bag, size), *table = super()._sizes()
        return (bag, max(size, self._left)), *table

    def look(self) -> None:
        """As in AppendedBag, unless that was done a moment ago."""
        now = time.monotonic()
        if now - self._looked >= PAUSE:
            self._looked = now
            super().look()

    def write_table(self) -> None:
        """As in AppendedBag. Without new records, a Bag that lacks a table gets none."""
        if self._stream.ends:
            super().write_table()

    def finish(self) -> tuple[int, ...]:
        """Look again after the last flush. Returns the descriptors of the files, which the caller syncs."""
        if self._index < 0:
            return ()
        super().look()
        return self.records, self.entries

    def read_record(self, number: int) -> bytes:
        """Return a record that was complete when the Bag was opened. Raises WriteError, like all methods."""
        with writing(self.path):
            entries = os.pread(self._index, 16 if number else 8, 8 * max(number - 1, 0))
            begin, end = OFFSET.unpack(entries[:-8] or bytes(8))[0], OFFSET.unpack(entries[-8:])[0]
            data, size = bytearray(), max(min(end, self._left) - begin, 0)  # another program may have changed the table
            while part := os.pread(self._bag, size - len(data), begin + len(data)):
                data += part
        return bytes(data)
