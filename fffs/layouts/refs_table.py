"""All rows of a refs.bag at once: which blobs each has. Those of the usual form are decoded together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fffs.errors import MetadataError, RecordError
from fffs.files.file import UInt8Array
from fffs.granular import refs
from fffs.granular.shards import Shard
from fffs.records.policy import ReadPolicy
from fffs.records.source_file import SourceFile
from fffs.records.store import RecordStore

Int64Array = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

STEP = 1 << 15  # rows that are decoded at a time
# An array's head has 5 bytes at most, a number 9.
HEAD, NUMBER = 5, 9


@dataclass(frozen=True)
class RefsTable:
    """For each key, int64[rows]: the store's number of the first blob, and how many there are (of a scalar, one)."""

    first: list[Int64Array]
    count: list[Int64Array]


def load(file: SourceFile, shard: Shard, sequences: Sequence[bool], check_data: bool = True) -> RefsTable:
    """The blobs of all rows of a shard.

    Args:
        file: its refs.bag, if it has one.
        shard: where its rows are.
        sequences: for each key, whether it is one.
        check_data: compare checksums, where there are some.

    Raises:
        RecordError: a row is damaged, or names blobs that are not there.
        MetadataError: the rows have more blobs than there are.
        ReadError: refs.bag cannot be read.

    """
    if shard.refs is None:
        rows = np.arange(shard.rows)
        return RefsTable([first + rows for first, _ in shard.columns], [np.ones_like(rows) for _ in shard.columns])
    _refuse_long(file, len(sequences))
    first = [np.empty(shard.rows, np.int64) for _ in sequences]
    count = [np.empty(shard.rows, np.int64) for _ in sequences]
    store = RecordStore([file], ReadPolicy(check=check_data), closes_files=False)
    try:
        for begin in range(0, shard.rows, STEP):
            part = range(begin, min(begin + STEP, shard.rows))
            _load_some(file, part, store.read_joined(part), shard, sequences, first, count)
    finally:
        store.close()
    for position, (_, blobs) in enumerate(shard.columns):
        # Else rows that share their blobs would make of a small file as many names as somebody likes.
        if sequences[position] and int(count[position].sum()) > blobs:
            raise MetadataError(f"{file.index.path}: its sequences have {int(count[position].sum())} blobs of {blobs}")
    return RefsTable(first, count)


def _refuse_long(file: SourceFile, keys: int) -> None:
    lengths = file.index.ends - file.index.starts
    most = HEAD + keys * (HEAD + 2 * NUMBER)
    if len(lengths) and int(lengths.max()) > most:
        row = int(lengths.argmax())
        raise _damaged(file, row, f"it has {int(lengths[row])} bytes; a row has at most {most}")


def _damaged(file: SourceFile, row: int, problem: str) -> RecordError:
    return RecordError(
        f"{file.index.path}: record {row} (at byte {int(file.index.starts[row])}): no row of a data set: {problem}",
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
    """Decode some rows, whose records are one after another in a buffer, into first and count."""
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
    """A row that is not of the usual form: another good one, or damaged."""
    try:
        entries = check_row(refs.decode(record, sequences), shard)
    except ValueError as error:
        raise _damaged(file, row, str(error)) from None
    for position, (begin, length) in enumerate(entries):
        first[position][row], count[position][row] = begin, length


def check_row(row: Sequence[refs.Ref], shard: Shard) -> list[tuple[int, int]]:
    """For each key of a row the store's number of its first blob, and how many. ValueError: they are not there."""
    checked = []
    for position, (ref, (first, blobs)) in enumerate(zip(row, shard.columns, strict=True)):
        begin, length = (ref, 1) if isinstance(ref, int) else ref
        if begin + length > blobs:
            raise ValueError(f"for key {position} it names the blobs {begin} to {begin + length - 1} of {blobs}")
        checked.append((first + begin, length))
    return checked


class _Walk:
    """Goes through many records at once. ``at``: where it is in each; ``good``: which were as expected so far."""

    def __init__(self, data: npt.NDArray[np.uint8], at: Int64Array) -> None:
        self._data, self.at = data, at
        self.good: Bools = np.ones(len(at), bool)

    def expect_array(self, sizes: tuple[int, ...]) -> Int64Array:
        """How many items the arrays have that begin here: one of these sizes."""
        code = self._data[self.at].astype(np.int64)
        small, wide = code & 0xF0 == 0x90, code == 0xDC
        size = np.where(small, code & 15, self._integer(2))
        self.good &= (small | wide) & np.isin(size, sizes)
        self.at = self.at + np.where(small, 1, 3)
        return np.where(self.good, size, 0)

    def number(self, present: Bools) -> Int64Array:
        """The numbers that begin here, 0 where none is present."""
        code = self._data[self.at].astype(np.int64)
        value, width = np.where(code < 0x80, code, 0), np.zeros_like(code)
        for kind, size in ((0xCC, 1), (0xCD, 2), (0xCE, 4)):  # those of eight bytes are left to the slow way
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
