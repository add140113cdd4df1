"""RecordStream: writes the records of a Bag to an open file. GrowingStream: to one that others may read meanwhile."""

from __future__ import annotations

import os
from array import array

from fffs.base.failures import writing
from fffs.files.atomic import forget_checksums
from fffs.files.pwrite import NewFile, write_at
from fffs.files.write_back import WriteBack
from fffs.formats.bag import encode_table

BUFFER = 1 << 20


class RecordStream:
    """Writes adjacent records to a new file, which the caller closes. Not thread-safe."""

    def __init__(self, file: NewFile, end: int = 0) -> None:
        """end: the offset of the first record."""
        self.file = file
        self.end = end
        self.ends = array("Q")
        self._write_back = WriteBack(file.fd)
        self._written = end
        self._pending = bytearray()

    def append(self, data: memoryview) -> None:
        """Add a record. Raises WriteError; the file must then be discarded."""
        if data.nbytes >= BUFFER:
            self.drain()
            self._write(data)
        else:
            self._pending += data
            if len(self._pending) >= BUFFER:
                self.drain()
        self.end += data.nbytes
        self.ends.append(self.end)

    def drain(self) -> None:
        """Pass all data to the operating system."""
        self._write(self._pending)
        self._pending.clear()

    def _write(self, data: memoryview | bytearray) -> None:
        write_at(self.file, [data], self._written)
        self._written += len(data)
        self._write_back.wrote(len(data))

    def finish(self) -> None:
        """Write the rest, and the table of layout v1."""
        self.drain()
        write_at(self.file, [encode_table(self.ends)], self._written)

    @property
    def size(self) -> int:
        """The size in bytes of the Bag with its table in layout v1."""
        return self.end + 8 * (len(self.ends) + 1)


class GrowingStream(RecordStream):
    """Writes to an existing Bag, for which other programs may write checksums at any time."""

    def __init__(self, file: NewFile, end: int, folder: int) -> None:
        """folder: that of the Bag, which the caller closes."""
        super().__init__(file, end)
        self._folder = folder

    def _write(self, data: memoryview | bytearray) -> None:
        name = os.path.basename(os.fsencode(self.file.path))
        with writing(self.file.path):
            forget_checksums(name, self._folder)  # also those written since the last call
        super()._write(data)
