"""Records of TFRecord and OFRecord files as rows: one file for each feature.

A feature with one bytes value is a file; one with several or none is a folder of numbered files. Numbers are a ``.npy``
file. A SequenceExample has the folders ``context`` and ``feature_lists``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fffs.errors import RecordError, UsageError
from fffs.formats.features import Decoded, ListKind, Schema
from fffs.formats.protobuf import MessageError
from fffs.formats.table import FORMATS, format_of
from fffs.layouts import npy
from fffs.layouts.escape import file_name
from fffs.layouts.plain import number_names
from fffs.layouts.rows import MOST_FILES, Entries, FileContent, Row
from fffs.native import lib
from fffs.records.source_file import SourceFile
from fffs.records.store import RecordStore

LARGEST = 64 << 20
"""The largest record that is decoded, in bytes. Each byte may become 8 bytes of numbers, and 24 while it is decoded."""


class MessageRows:
    """The records of open files, decoded."""

    def __init__(self, files: list[SourceFile], store: RecordStore) -> None:
        """Raises UsageError for files of a format without messages."""
        self._schemas = {id(file): _schema(file) for file in files}
        self._store = store
        self.n = store.n
        self.mtime = max(file.file.mtime_ns for file in files)
        self.files: dict[bytes, FileContent] = {}

    def record(self, number: int) -> int:
        """Return ``number``: row n is record n."""
        return number

    def load(self, number: int) -> Row:
        """Read and decode a record. See ``Rows``."""
        file, _ = self._store.locate(number)
        if self._store.length(number) > LARGEST:
            raise self._failure(number, f"has {self._store.length(number)} bytes; at most {LARGEST} are decoded")
        data = self._store.read_one(number).tobytes()
        schema = self._schemas[id(file)]
        try:
            return Row(_entries(data, number, schema))
        except MessageError as error:
            raise self._failure(number, f"cannot be decoded: {error}") from None

    def _failure(self, number: int, problem: str) -> RecordError:
        file, row = self._store.locate(number)
        return RecordError(
            f"{file.index.path}: record {row}: {problem}; mount without -o decode to see its bytes",
            path=file.index.path,
            record=row,
            number=number,
        )


def _schema(file: SourceFile) -> Schema:
    form = format_of(file.index)
    if form is None or form.schema is None:
        raise UsageError(
            f"{file.index.path}: records of format {file.index.format} cannot be decoded; decode is for "
            f"{', '.join(form.title for form in FORMATS if form.schema)} and granular data sets"
        )
    return form.schema


def _entries(data: bytes, record: int, schema: Schema) -> Entries:
    message = _Message(data, schema.message, schema.kinds, record)
    if not message.sequence:
        return message.one_each()
    lists = _Message(data, lib.FFFS_SCHEMA_FEATURE_LISTS, schema.kinds, record)
    if message.files + lists.files > MOST_FILES:
        raise MessageError(f"it has more than {MOST_FILES} files")
    return {b"context": message.one_each(), b"feature_lists": lists.several_each()}


class _Message(Decoded):
    """A message's map as files. Bytes values are not copied: their files are ranges of the record."""

    def __init__(self, data: bytes, schema: int, kinds: tuple[ListKind, ...], record: int) -> None:
        super().__init__(data, schema, kinds)
        self._record = record
        items = (self._values // 8 - self._items) // 2
        self.files = max(len(self._entries), len(self._features)) + items  # a feature of numbers is one file
        if self.files > MOST_FILES:
            raise MessageError(f"it has more than {MOST_FILES} files")

    def _rows(self) -> Iterator[tuple[bytes, list[list[int]]]]:
        """Yield (name, [kind, first, count] of its features) of each entry. The last entry of a name counts."""
        last = {self._data[begin:end]: (first, count) for begin, end, first, count in self._entries.tolist()}
        for name, (first, count) in last.items():
            yield name, self._features[first : first + count].tolist()

    def one_each(self) -> Entries:
        """Return the files of a map of features."""
        return dict(self._named(name, *rows[0]) for name, rows in self._rows())

    def several_each(self) -> Entries:
        """Return the folders of a map of feature lists."""
        entries: Entries = {}
        for name, rows in self._rows():
            numbers = number_names(len(rows))
            entries[file_name(name)] = dict(self._named(k, *row) for k, row in zip(numbers, rows, strict=True))
        return entries

    def _named(self, name: bytes, kind: int, first: int, count: int) -> tuple[bytes, FileContent | Entries]:
        if kind == 0:
            return file_name(name), {}
        if self._kinds[kind - 1].dtype is not None:
            numbers = self._value(kind, first, count)
            assert isinstance(numbers, np.ndarray)
            return file_name(name, b".npy"), FileContent(npy.encode(numbers))
        at = self._items + 2 * first
        words = self._tables[at : at + 2 * count].tolist()
        files = [FileContent(b"", self._record, a, b - a) for a, b in zip(words[::2], words[1::2], strict=True)]
        if count == 1:
            return file_name(name), files[0]
        return file_name(name), dict(zip(number_names(count), files, strict=True))
