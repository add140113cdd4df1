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
NO_DICTIONARY: Final = "Not yet implemented: DecodeArrow of DictAccumulator"  # for encodings of version 2
FEW_ROWS: Final = 64  # of values that may share bytes in the file, of which the average knows nothing
READ: Final = 1 << 20


class ParquetItems(TableItems):
    """Rows of Parquet files."""

    def _load(self) -> None:
        self._unit, self._has_int96 = "ns", False  # the type of INT96 for Arrow, as of other files of the same table
        self._plainly = False  # whether Arrow made no dictionary of some bytes
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
                    for group in range(raw.num_row_groups):
                        needs.see(_batches(raw, group, list(columns), BATCH_ROWS), columns)
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
        places = [] if self._plainly else [place for name in columns for place in self._places(name)]
        opened = self._open(file, places)
        with decoding(file.name):
            for group in range(opened.num_row_groups):  # a batch of several groups could have several dictionaries
                done = 0
                try:
                    for batch in _batches(opened, group, columns, FEW_ROWS if self._plainly else BATCH_ROWS):
                        yield batch
                        done += batch.num_rows
                except OSError as error:
                    # The footer says which columns have such values, but pyarrow ends the process if what it says of
                    # one is encrypted or damaged.
                    if NO_DICTIONARY not in str(error):
                        raise
                    self._plainly = True  # from now on: each attempt costs reading
                    opened = self._open(file, metadata=opened.metadata)
                    yield from _without(done, _batches(opened, group, columns, FEW_ROWS))

    def _places(self, column: str) -> list[str]:
        """Return what may be read as a dictionary: the bytes in a column."""
        kind = self._type(column)
        if is_embedded_file(kind):
            return [f"{column}.{BYTES}", f"{column}.{PATH}"]
        return [column] if holds_bytes(kind) else []


def _batches(opened: Any, group: int, columns: list[str], most: int) -> Iterator[Any]:
    """Yield columns of a row group, a few rows at a time."""
    about = opened.metadata.row_group(group)
    rows = BATCH_BYTES * about.num_rows // max(about.total_byte_size, 1)
    yield from opened.iter_batches(max(min(rows, most), 1), row_groups=[group], columns=columns, use_threads=False)


def _without(rows: int, batches: Iterator[Any]) -> Iterator[Any]:
    """Leave out the first rows of record batches."""
    for batch in batches:
        skipped = min(rows, batch.num_rows)
        rows -= skipped
        if skipped < batch.num_rows:
            yield batch.slice(skipped)
