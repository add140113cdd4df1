"""Decodes all rows of a refs.bag: the blobs that each row has. Rows of the usual encoding are decoded together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fffs.base.numbers import isin
from fffs.errors import MetadataError, RecordError
from fffs.files.file import UInt8Array
from fffs.granular import refs
from fffs.granular.shards import Shard
from fffs.records.source_file import SourceFile
from fffs.records.store import RecordStore

Int64Array = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

STEP = 1 << 15  # rows that are decoded at a time
# The most bytes of the header of a msgpack array, and of a number.
HEAD, NUMBER = 5, 9


@dataclass(frozen=True)
class RefsTable:
    """For each key, int64[rows]: the store's number of the first blob, and the number of blobs (1 for a scalar)."""

    first: list[Int64Array]
    count: list[Int64Array]


def load(file: SourceFile, shard: Shard, sequences: Sequence[bool]) -> RefsTable:
    """Load the blob numbers of all rows of a shard.

    Args:
        file: the shard's refs.bag, if it has one.
        shard: the shard.
        sequences: for each key, whether it is a sequence.

    Raises:
        RecordError: a row is damaged, or refers to blobs that do not exist.
        MetadataError: the rows together have more blobs than exist.
        ReadError: refs.bag cannot be read.

    """
    if shard.refs is None:
        rows = np.arange(shard.rows)
        return RefsTable([first + rows for first, _ in shard.columns], [np.ones_like(rows) for _ in shard.columns])
    _refuse_long(file, len(sequences))
    first = [np.empty(shard.rows, np.int64) for _ in sequences]
    count = [np.empty(shard.rows, np.int64) for _ in sequences]
    store = RecordStore([file], closes_files=False)
    try:
        for begin in range(0, shard.rows, STEP):
            part = range(begin, min(begin + STEP, shard.rows))
            _load_some(file, part, store.read_joined(part), shard, sequences, first, count)
    finally:
        store.close()
    for position, (_, blobs) in enumerate(shard.columns):
        # Otherwise rows that share blobs could make any number of names from a small file.
        if sequences[position] and (total := int(count[position].sum())) > blobs:
            raise MetadataError(f"{file.index.path}: its sequences have {total} blobs, but only {blobs} exist")
    return RefsTable(first, count)


def _refuse_long(file: SourceFile, keys: int) -> None:
    lengths = file.index.ends - file.index.starts
    most = HEAD + keys * (HEAD + 2 * NUMBER)
    if len(lengths) and int(lengths.max()) > most:
        row = int(lengths.argmax())
        raise _damaged(file, row, f"its {int(lengths[row])} bytes are too many; a row has at most {most}")


def _damaged(file: SourceFile, row: int, problem: str) -> RecordError:
    return RecordError(
        f"{file.index.path}: record {row} (at byte {int(file.index.starts[row])}): not a row of a data set: {problem}",
        path=file.index.path,
        record=row,
        number=row,
    )


def _load_some(
    file: SourceFile,
    rows: range,
    records: tuple[UInt8Array, Int64Array],
    shard: Shard,
    sequences: Sequence[bool],
    first: list[Int64Array],
    count: list[Int64Array],
) -> None:
    """Decode some rows, whose records are adjacent in a buffer, into first and count."""
    buffer, bounds = records
    margin = HEAD + len(sequences) * (HEAD + 2 * NUMBER)
    walk = _Walk(np.concatenate([buffer, np.zeros(margin, np.uint8)]), bounds[:-1])
    walk.expect_array((len(sequences),))
    part = slice(rows.start, rows.stop)
    for position, sequence in enumerate(sequences):
        items = walk.expect_array((0, 2)) if sequence else np.ones(len(rows), np.int64)
        begin = walk.number(items > 0)
        length = walk.number(items == 2) if sequence else np.ones(len(rows), np.int64)
        first_blob, blobs = shard.columns[position]
        walk.good &= (begin <= blobs) & (length <= blobs) & (begin + length <= blobs)
        first[position][part], count[position][part] = first_blob + begin, length
    walk.good &= walk.at == bounds[1:]
    for k in np.flatnonzero(~walk.good).tolist():
        record = buffer[bounds[k] : bounds[k + 1]].tobytes()
        _set_one(file, rows[k], record, shard, sequences, first, count)


def _set_one(
    file: SourceFile,
    row: int,
    record: bytes,
    shard: Shard,
    sequences: Sequence[bool],
    first: list[Int64Array],
    count: list[Int64Array],
) -> None:
    """Decode a row that is not in the usual encoding. Raises RecordError if the row is damaged."""
    try:
        entries = check_row(refs.decode(record, sequences), shard)
    except ValueError as error:
        raise _damaged(file, row, str(error)) from None
    for position, (begin, length) in enumerate(entries):
        first[position][row], count[position][row] = begin, length


def check_row(row: Sequence[refs.Ref], shard: Shard) -> list[tuple[int, int]]:
    """Return (store's number of the first blob, number of blobs) of each key. Raises ValueError for missing blobs."""
    checked = []
    for position, (ref, (first, blobs)) in enumerate(zip(row, shard.columns, strict=True)):
        begin, length = (ref, 1) if isinstance(ref, int) else ref
        if begin + length > blobs:
            raise ValueError(f"key {position} has the blobs {begin} to {begin + length - 1}, but only {blobs} exist")
        checked.append((first + begin, length))
    return checked


class _Walk:
    """Decodes many records at once. ``at``: the position in each record; ``good``: which were as expected so far."""

    def __init__(self, data: npt.NDArray[np.uint8], at: Int64Array) -> None:
        self._data, self.at = data, at
        self.good: Bools = np.ones(len(at), bool)

    def expect_array(self, sizes: tuple[int, ...]) -> Int64Array:
        """Read array headers at the current positions. Returns the sizes, which must be among ``sizes``."""
        code = self._data[self.at].astype(np.int64)
        small, wide = code & 0xF0 == 0x90, code == 0xDC
        size = np.where(small, code & 15, self._integer(2))
        self.good &= (small | wide) & isin(size, sizes)
        self.at = self.at + np.where(small, 1, 3)
        return np.where(self.good, size, 0)

    def number(self, present: Bools) -> Int64Array:
        """Read the numbers at the current positions; 0 where none is present."""
        code = self._data[self.at].astype(np.int64)
        value, width = np.where(code < 0x80, code, 0), np.zeros_like(code)
        for kind, size in ((0xCC, 1), (0xCD, 2), (0xCE, 4)):  # _set_one decodes those of 8 bytes
            if (found := code == kind).any():
                value, width = np.where(found, self._integer(size), value), np.where(found, size, width)
        self.good &= ~present | (code < 0x80) | (width > 0)
        self.at = np.where(present & self.good, self.at + 1 + width, self.at)
        return np.where(present, value, 0)

    def _integer(self, size: int) -> Int64Array:
        value = np.zeros(len(self.at), np.int64)
        for k in range(1, size + 1):
            value = value << 8 | self._data[self.at + k]
        return value
