"""FrameWriter: writes a file of frames, which appears complete or not at all."""

from __future__ import annotations

from typing import Any

from fffs.base.views import readable_bytes
from fffs.files.file import UInt8Array
from fffs.formats.record_writer import RecordWriter
from fffs.records.index import Int64Array


class FrameWriter(RecordWriter):
    """Writes records to ``fname``, which appears, complete, when ``close`` is called.

    Leaving the with-block closes the file; leaving it by an exception forgets what was written. Until then nothing is
    visible under ``fname``, and an older file there stays as it is. Not thread-safe; not to be used in a child of fork.
    """

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
        data = readable_bytes(buffer)
        head, tail = self._around(data)
        self._append((head, data, tail), data.nbytes)

    def _frame(self, data: UInt8Array, bounds: Int64Array) -> list[Any]:
        view, edges = memoryview(data), bounds.tolist()
        pieces: list[Any] = []
        for k in range(len(edges) - 1):
            record = view[edges[k] : edges[k + 1]]
            head, tail = self._around(record)
            pieces += (head, record, tail)
        return pieces
