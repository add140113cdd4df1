"""Reads tables: what Parquet and Arrow have in common, Arrow files, streams, and data sets saved by Hugging Face.

pyarrow decodes them. It gets file objects, and never the names of files, which it would map into memory.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Final

from fffs.base.memory import available_memory
from fffs.converting.foreign.cells import cells_of, has_nested_bytes, holds_bytes, is_embedded_file, stored
from fffs.converting.foreign.items import Bytes, ForeignItems
from fffs.errors import FffsError, FormatError, MetadataError, UnsupportedError, UsageError
from fffs.files.file import File, FileStream
from fffs.granular.optional import library
from fffs.layouts.plain import digits_for
from fffs.layouts.samples import KEY

URL: Final = "__url__"  # where WebDataset read a sample
PATH, BYTES = "path", "bytes"
LEAST: Final = 1 << 30  # bytes that may be read at once, however little memory there seems to be


@contextlib.contextmanager
def decoding(shown: str) -> Iterator[None]:
    """Raise what pyarrow raises in the block as FormatError in one line."""
    try:
        yield
    except (FffsError, GeneratorExit):
        raise
    except MemoryError:
        raise UnsupportedError(f"{shown}: not enough memory to decode a batch of its rows") from None
    except Exception as error:  # pyarrow raises built-in exceptions of many kinds for damaged files
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise MetadataError(f"{shown}: damaged, or not understood by pyarrow: {line:.200}") from error


class _Bounded(FileStream):
    """A file whose reads are bounded: a damaged file may claim any size of what comes next."""

    def __init__(self, file: File, most: int) -> None:
        super().__init__(file)
        self._shown, self._most, self._end = file.name, most, file.size

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(self._end - self.tell(), 0)
        size = left if size is None or size < 0 else min(size, left)
        if size > self._most:
            raise UnsupportedError(f"{self._shown}: needs {size} bytes at once, more than half of the memory")
        return super().read(size) or b""


class TableItems(ForeignItems):
    """Rows of tables. A row becomes a file for each of its columns, ``NNNNNN.COLUMN`` or ``KEY.COLUMN`` if there is a
    column ``__key__``. Rows of only ``path`` and ``bytes`` become files of that path.
    """

    def _load(self) -> None:
        library("pyarrow", f"{self.shown}: reading it")
        self._schema = self._common_schema()

    @abstractmethod
    def schema_of(self, file: File) -> Any:
        """Return the schema of a file. Raises FormatError, ReadError."""

    @abstractmethod
    def rows_of(self, file: File) -> int:
        """Return the number of rows. Raises FormatError, ReadError."""

    @abstractmethod
    def batches_of(self, file: File, columns: list[str]) -> Iterator[Any]:
        """Yield the rows as record batches, which have these columns at least. Raises FormatError, ReadError."""

    def input(self, file: File) -> FileStream:
        """Return what pyarrow reads a file from."""
        return _Bounded(file, max(available_memory() // 2, LEAST))

    def _common_schema(self) -> Any:
        found: Any = None
        names: list[str] = []
        self._metadata: set[bytes] = set()  # the names of entries
        for file in self.open_files:
            with decoding(file.name):  # also of names that are no text
                schema = self.schema_of(file)
                self._metadata |= set(schema.metadata or ())
                schema = schema.remove_metadata()
                names = schema.names
                str(schema)
                list(map(has_nested_bytes, schema.types))  # fails if a type is nested too deep
            if found is not None and not found.equals(schema):
                first = self.open_files[0].name
                raise FormatError(f"{file.name}: has other columns than {first}; convert it separately")
            found = schema
        for name in names:
            if names.count(name) > 1:
                raise UnsupportedError(f"{self.shown}: has several columns {name!r}")
        return found if self.open_files else library("pyarrow", self.shown).schema([])

    def _type(self, column: str) -> Any:
        return stored(self._schema.field(column).type)

    # ------------------------------------------------------------ files

    def files(self) -> Iterator[tuple[bytes, Bytes]]:
        """As in ``ForeignItems``."""
        names = self._schema.names
        if sorted(names) == [BYTES, PATH] and holds_bytes(self._type(PATH)):
            return self._named_files()
        return self._samples([name for name in names if name not in (KEY, URL)], KEY in names)

    def _named_files(self) -> Iterator[tuple[bytes, Bytes]]:
        for row, (path, data) in enumerate(self._rows([PATH, BYTES])):
            if path is None or data is None:
                raise self._null(row, PATH if path is None else BYTES)
            yield bytes(path), data

    def _samples(self, columns: list[str], keyed: bool) -> Iterator[tuple[bytes, Bytes]]:
        self._refuse_nested(columns)
        with decoding(self.shown):
            digits = 0 if keyed else digits_for(sum(map(self.rows_of, self.open_files)))
        endings = [b"." + column.encode() for column in columns]
        for row, cells in enumerate(self._rows([*columns, *[KEY] * keyed])):
            stem = cells.pop() if keyed else b"%0*d" % (digits, row)
            if stem is None:
                raise self._null(row, KEY)
            for ending, cell in zip(endings, cells, strict=True):
                if cell is not None:
                    yield bytes(stem) + ending, cell

    def _rows(self, columns: list[str]) -> Iterator[list[Bytes | None]]:
        """Yield the cells of each row."""
        name, row = "", 0

        def fail(what: str) -> Exception:
            return UnsupportedError(f"{name}: row {row} {what}")

        for file in self.open_files:
            name, row = file.name, 0
            batches = self.batches_of(file, columns)
            while True:
                with decoding(file.name):
                    batch = next(batches, None)
                    if batch is None:
                        break
                    batch.validate(full=True)
                cells = [cells_of(batch.column(batch.schema.get_field_index(column)), fail) for column in columns]
                for _ in range(batch.num_rows):
                    with decoding(file.name):
                        found = [next(cell) for cell in cells]
                    yield found
                    row += 1

    def _null(self, row: int, column: str) -> UnsupportedError:
        return UnsupportedError(f"{self.shown}: row {row} has nothing in the column {column!r}")

    def _refuse_nested(self, columns: list[str]) -> None:
        for name in columns:
            if not holds_bytes(self._type(name)) and has_nested_bytes(self._type(name)):
                raise UnsupportedError(
                    f"{self.shown}: the column {name!r} has bytes in {self._type(name)}, which no file can hold; "
                    "convert another column to records (--column)"
                )

    # ------------------------------------------------------------ records

    def values(self, column: str | None) -> Iterator[Bytes]:
        """As in ``ForeignItems``."""
        name = self._column(column)
        for row, (cell,) in enumerate(self._rows([name])):
            if cell is None:
                raise self._null(row, name)
            yield cell

    def _column(self, column: str | None) -> str:
        names = [name for name in self._schema.names if holds_bytes(self._type(name))]
        if column is None:
            # A UUID or JSON beside one column of bytes or text is what that is called by, or says about it.
            plain = [name for name in names if self._type(name) == self._schema.field(name).type] or names
            binary = [name for name in plain if not self._is_text(name)] or plain
            if len(binary) == 1:
                return str(binary[0])
            known = ", ".join(names) or "none has bytes"
            raise UsageError(f"{self.shown}: choose the column that becomes records with --column: {known}")
        if column not in self._schema.names:
            raise UsageError(f"{self.shown}: has no column {column!r}; it has {', '.join(self._schema.names)}")
        if column not in names:
            raise UsageError(f"{self.shown}: the column {column!r} is {self._type(column)}, and records are bytes")
        return column

    def _is_text(self, name: str) -> bool:
        return "string" in str(self._type(name)) and not is_embedded_file(self._type(name))

    def left_out(self, column: str | None, *, names: bool) -> list[str]:
        """As in ``ForeignItems``."""
        if not names:
            chosen = self._column(column)
            others = [name for name in self._schema.names if name != chosen]
            lines = [f"{self.shown}: the columns {', '.join(others)} are not kept"] * bool(others)
            return lines + self._lost([chosen])
        texts = [f"{name} ({self._type(name)})" for name in self._schema.names if not holds_bytes(self._type(name))]
        self._refuse_nested(self._schema.names)
        lines = [f"{self.shown}: becomes text: {', '.join(texts)}"] * bool(texts)
        lines += [f"{self.shown}: the column {URL} is not kept"] * (URL in self._schema.names)
        return lines + self._lost(self._schema.names)

    def _lost(self, columns: Sequence[str]) -> list[str]:
        """Return lines about what no result keeps, however its columns are chosen."""
        embedded = [name for name in columns if is_embedded_file(self._type(name))]
        lines = [f"{self.shown}: the bytes in {', '.join(embedded)} are kept, not the paths"] * bool(embedded)
        names = ", ".join(repr(name)[2:-1] for name in sorted(self._metadata))
        return lines + [f"{self.shown}: the metadata of its columns is not kept ({names:.200})"] * bool(names)


class ArrowItems(TableItems):
    """Rows of Arrow files and streams."""

    def _open(self, file: File) -> Any:
        with decoding(file.name):
            ipc = library("pyarrow.ipc", f"{self.shown}: reading it")
            given = self.input(file)
            return (ipc.open_file if file.read_bytes(0, 6) == b"ARROW1" else ipc.open_stream)(given)

    def schema_of(self, file: File) -> Any:
        """As in ``TableItems``."""
        return self._open(file).schema

    def rows_of(self, file: File) -> int:
        """As in ``TableItems``. Reads the file."""
        return sum(batch.num_rows for batch in self.batches_of(file, []))

    def batches_of(self, file: File, columns: list[str]) -> Iterator[Any]:
        """As in ``TableItems``."""
        opened = self._open(file)
        if hasattr(opened, "num_record_batches"):
            return (opened.get_batch(k) for k in range(opened.num_record_batches))
        return iter(opened)
