"""Writes tables: Parquet and Arrow files with the columns ``path`` and ``bytes``, or one column of records."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, Final

import numpy as np

from fffs.base.jobs import Jobs
from fffs.converting.foreign.exported import (
    Exported,
    ExportedPack,
    ExportedRecords,
    ExportEntry,
    ExportReading,
    WholeFiles,
)
from fffs.converting.foreign.parquet_items import ParquetItems
from fffs.converting.foreign.table_items import BYTES, PATH, ArrowItems, TableItems
from fffs.converting.verifying import differs
from fffs.errors import UnsupportedError
from fffs.files.file import File
from fffs.granular.optional import library
from fffs.packing.shared_records import refuse_multiplied
from fffs.records.index import Int64Array

LARGEST: Final = 2**31 - 1  # bytes of a cell, the most that Parquet can hold
PARQUET_GROUP: Final = 32 << 20  # bytes of the rows that are written together
ARROW_BATCH: Final = 4 << 20
ROWS: Final = 1 << 16  # the most that are written together


def _files(content: Exported) -> Iterator[ExportEntry]:
    return (entry for entry in content.entries() if stat.S_ISREG(entry.mode))


def sizes_of_files(content: Exported) -> Int64Array:
    """See ``Export``."""
    return np.fromiter((entry.size for entry in _files(content)), np.int64)


def prepare_table(content: Exported, split: bool) -> list[str]:
    """See ``Export``."""
    library("pyarrow", f"{content.shown}: writing a table of it")
    for entry in _files(content):
        if entry.size > LARGEST:
            raise UnsupportedError(f"{content.shown}: {entry.path!a:.200} has {entry.size} bytes, too many for a cell")
        try:
            entry.path.decode()
        except UnicodeDecodeError:
            raise UnsupportedError(
                f"{content.shown}: {entry.path!a:.200} is not UTF-8, as texts in tables are; write a tar archive"
            ) from None
    if not isinstance(content, ExportedPack):
        return []
    refuse_multiplied(content.view)
    others = "symbolic links and " * content.has_links
    return [f"{content.shown}: modes, times, {others}folders without files are not kept, only names and bytes"]


class TablePass:
    """Writes or compares all files, one after the other. See ``Pass``."""

    def __init__(
        self,
        content: Exported,
        bounds: Sequence[int],
        reading: ExportReading,
        work: Jobs,
        begin: Callable[[BinaryIO, Any], Any],
        items: type[TableItems],
        together: int,
    ) -> None:
        """begin: opens a writer of record batches. items: reads such a file. together: bytes of one batch."""
        self._begin, self._items, self._together = begin, items, together
        self._files = WholeFiles(_files(content), bounds, reading, work)
        self._named = not isinstance(content, ExportedRecords)
        self._column = content.key if isinstance(content, ExportedRecords) else BYTES
        self._arrow = library("pyarrow", "writing tables")

    def write(self, sink: BinaryIO) -> None:
        """Write the next file."""
        arrow = self._arrow
        fields = [(PATH, arrow.string())] * self._named + [(self._column, arrow.binary())]
        schema = arrow.schema([arrow.field(name, kind, nullable=False) for name, kind in fields])
        with self._begin(sink, schema) as writer:
            rows: list[tuple[ExportEntry, bytes]] = []
            size = 0
            for row in self._files.next_part():
                if rows and (size + len(row[1]) > self._together or len(rows) == ROWS):
                    writer.write_batch(self._batch(rows, schema))
                    rows, size = [], 0
                rows.append(row)
                size += len(row[1])
            if rows:
                writer.write_batch(self._batch(rows, schema))

    def _batch(self, rows: list[tuple[ExportEntry, bytes]], schema: Any) -> Any:
        columns = [_column([entry.path for entry, _ in rows], schema.types[0])] if self._named else []
        columns.append(_column([data for _, data in rows], schema.types[-1]))
        return self._arrow.record_batch(columns, schema=schema)

    def compare(self, file: File, target: str) -> None:
        """Raise RecordError unless a file has the rows of the next part."""
        found = self._items([file], target)
        written = found.files() if self._named else ((b"", data) for data in found.values(self._column))
        number = 0
        for entry, data in self._files.next_part():
            path, there = next(written, (b"", None))
            if there is None or bytes(there) != data or (self._named and path != entry.path):
                raise differs(target, number)
            number += 1
        if next(written, None) is not None:
            raise differs(target, number)


def _column(cells: list[bytes], kind: Any) -> Any:
    """Return an array of cells, whose bytes are copied once."""
    arrow = library("pyarrow", "writing tables")
    offsets = np.zeros(len(cells) + 1, np.int32)
    np.cumsum([len(cell) for cell in cells], out=offsets[1:])
    buffers = [None, arrow.py_buffer(offsets), arrow.py_buffer(b"".join(cells))]
    return arrow.Array.from_buffers(kind, len(cells), buffers)


def begin_parquet(content: Exported, bounds: Sequence[int], reading: ExportReading, work: Jobs) -> TablePass:
    """Begin a pass over Parquet files."""

    def begin(sink: BinaryIO, schema: Any) -> Any:
        parquet = library("pyarrow.parquet", "writing Parquet")
        return parquet.ParquetWriter(
            sink, schema, use_dictionary=False, write_statistics=[PATH], write_page_checksum=True
        )

    return TablePass(content, bounds, reading, work, begin, ParquetItems, PARQUET_GROUP)


def begin_arrow(content: Exported, bounds: Sequence[int], reading: ExportReading, work: Jobs) -> TablePass:
    """Begin a pass over Arrow files."""

    def begin(sink: BinaryIO, schema: Any) -> Any:
        return library("pyarrow.ipc", "writing Arrow").new_file(sink, schema)

    return TablePass(content, bounds, reading, work, begin, ArrowItems, ARROW_BATCH)
