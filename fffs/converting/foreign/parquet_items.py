"""Reads tables in Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from fffs.converting.foreign.cells import holds_bytes, is_embedded_file
from fffs.converting.foreign.int96 import Int96Needs, has_int96, int96_columns
from fffs.converting.foreign.items import Bytes
from fffs.converting.foreign.parquet_footer import with_int96_as_bytes
from fffs.converting.foreign.table_items import BYTES, PATH, TableItems, decoding
from fffs.errors import UnsupportedError
from fffs.files.file import File
from fffs.granular.optional import library

BATCH_BYTES: Final = 4 << 20  # of rows that are decoded at a time, judging by the average of a row group
BATCH_ROWS: Final = 4096
FEW_ROWS: Final = 64  # of values that may share bytes in the file, of which the average knows nothing
READ: Final = 1 << 20


class ParquetItems(TableItems):
    """Rows of Parquet files."""

    def _load(self) -> None:
        self._unit, self._has_int96 = "ns", False  # the type of INT96 for Arrow, as of other files of the same table
        super()._load()

    def files(self) -> Iterator[tuple[bytes, Bytes]]:
        """As in ``ForeignItems``."""
        if self._has_int96:  # records are bytes, and need no times
            self._unit, self._has_int96 = self._unit_of_int96(), False
        return super().files()

    def _open(self, file: File, columns: Sequence[str] = (), metadata: Any = None) -> Any:
        with decoding(file.name):
            parquet = library("pyarrow.parquet", f"{self.shown}: reading it")
            return parquet.ParquetFile(
                self.input(file),
                buffer_size=READ,
                pre_buffer=False,
                page_checksum_verification=True,
                read_dictionary=list(columns),
                coerce_int96_timestamp_unit=self._unit,
                metadata=metadata,
            )

    def _unit_of_int96(self) -> str:
        """Return the unit that keeps all times of INT96. Their type does not say what they need."""
        needs = Int96Needs()
        for file in self.open_files:
            opened = self._open(file)
            if has_int96(opened.schema):
                with decoding(file.name):
                    footer = library("pyarrow", self.shown).BufferReader(with_int96_as_bytes(file))
                    raw = self._open(file, metadata=library("pyarrow.parquet", self.shown).read_metadata(footer))
                    columns = int96_columns(opened.schema, raw.schema_arrow)
                    needs.see(_batches(raw, list(columns)), columns)
        if needs.needs_nanoseconds and needs.overflows:
            raise UnsupportedError(
                f"{self.shown}: has INT96 times with nanoseconds, or before 1970 in the form of an older pyarrow, and "
                "others beyond the years 1677 to 2262; write them as another type, such as TIMESTAMP_MICROS"
            )
        return "us" if needs.overflows else "ns"

    def schema_of(self, file: File) -> Any:
        """As in ``TableItems``."""
        opened = self._open(file)
        self._has_int96 |= has_int96(opened.schema)
        return opened.schema_arrow

    def rows_of(self, file: File) -> int:
        """As in ``TableItems``."""
        return int(self._open(file).metadata.num_rows)

    def batches_of(self, file: File, columns: list[str]) -> Iterator[Any]:
        """As in ``TableItems``. Values that a file has once, for many rows, are in memory once if Arrow can do that."""
        opened = self._open(file)
        with decoding(file.name):
            places = {place for name in columns for place in self._places(name)}
            without = _without_dictionary(opened, places)
        opened = self._open(file, sorted(places - without), opened.metadata)
        with decoding(file.name):
            yield from _batches(opened, columns, FEW_ROWS if without else BATCH_ROWS)

    def _places(self, column: str) -> list[str]:
        """Return what may be read as a dictionary: the bytes in a column."""
        kind = self._type(column)
        if is_embedded_file(kind):
            return [f"{column}.{BYTES}", f"{column}.{PATH}"]
        return [column] if holds_bytes(kind) else []


def _without_dictionary(opened: Any, places: set[str]) -> set[str]:
    """Return which of the columns Arrow cannot read as a dictionary: those whose values begin as the ones before."""
    groups = [opened.metadata.row_group(k) for k in range(opened.num_row_groups)]
    paths = {k: opened.schema.column(k).path for k in range(len(opened.schema))}
    return {
        path
        for k, path in paths.items()
        if path in places and any("DELTA" in encoding for group in groups for encoding in group.column(k).encodings)
    }


def _batches(opened: Any, columns: list[str], most: int = BATCH_ROWS) -> Iterator[Any]:
    """Yield columns of a Parquet file, a few rows at a time."""
    for k in range(opened.num_row_groups):  # a batch of several groups could have several dictionaries
        group = opened.metadata.row_group(k)
        rows = BATCH_BYTES * group.num_rows // max(group.total_byte_size, 1)
        rows = max(min(rows, most), 1)
        yield from opened.iter_batches(rows, row_groups=[k], columns=columns, use_threads=False)
