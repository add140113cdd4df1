"""FrameWriter: writes a file that consists of frames."""

from __future__ import annotations

from typing import Any

from fffs.base.buffers import readable_bytes
from fffs.files.file import UInt8Array
from fffs.formats.record_writer import RecordWriter
from fffs.records.index import Int64Array


class FrameWriter(RecordWriter):
    """Writes records to ``fname``. ``close`` puts the complete file in place.

    The end of a with-block closes the writer; an exception in it discards the new file. Until the writer is closed,
    nothing appears at ``fname``, and an older file stays there. Not thread-safe. A forked child must not use it.
    """

    def _around(self, data: memoryview, record: int) -> tuple[bytes, bytes]:
        """Return the bytes of a frame before and after its data. record: its number."""
        raise NotImplementedError

    def write_one(self, buffer: Any) -> None:
        """Append one record: the bytes of any C-contiguous buffer.

        Raises:
            WriterError: the writer is closed or finished.
            TypeError: the argument is not a buffer, or not contiguous.
            WriteError: the operating system could not write; the new file is discarded.

        """
        self._need_unfinished()
        data = readable_bytes(buffer)
        head, tail = self._around(data, self.count)
        self._append((head, data, tail))

    def _frame(self, data: UInt8Array, bounds: Int64Array) -> list[Any]:
        view, edges = memoryview(data), bounds.tolist()
        pieces: list[Any] = []
        for k in range(len(edges) - 1):
            record = view[edges[k] : edges[k + 1]]
            head, tail = self._around(record, self.count + k)
            pieces += (head, record, tail)
        return pieces
