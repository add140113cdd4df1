"""RecordIndex: where each record of one file lies, and how it is checked.

The only place where numbers that came from a file become trusted: everything behind it (store, engine, mount) takes
offsets and lengths from a RecordIndex that ``validate`` has passed, and from nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from fffs.errors import MetadataError
from fffs.native.engine import BLOCK, CHECK_CRC32, CHECK_NONE

Int64Array = npt.NDArray[np.int64]
UInt32Array = npt.NDArray[np.uint32]
UInt64Array = npt.NDArray[np.uint64]

STEP = 1 << 16


@dataclass(frozen=True, eq=False)
class BlockChecksums:
    """CRC-32 of each block of 1 MiB of the records that are larger than that.

    ``records`` uint32[b], ascending; ``first_blocks`` uint64[b + 1]: record ``records[k]`` has the checksums from
    ``first_blocks[k]`` to ``first_blocks[k + 1]`` of ``checksums`` uint32[blocks].
    """

    records: UInt32Array
    first_blocks: UInt64Array
    checksums: UInt32Array


@dataclass(frozen=True, eq=False)
class RecordIndex:
    """Where the records of one file lie. Immutable; may be shared between threads and inherited over fork.

    ``starts`` and ``ends`` are int64[n] file offsets in bytes, ``checksums`` is uint32[n] or None, ``check`` says how
    they are computed (``fffs.native.engine.CHECK_*``), ``file_size`` is the file's size when the index was loaded,
    ``format`` is what people call the file's format. ``grows``: somebody may append to the file while it is open.
    """

    path: str
    starts: Int64Array
    ends: Int64Array
    checksums: UInt32Array | None
    check: int
    file_size: int
    blocks: BlockChecksums | None = None
    format: str = "FFRecord"
    grows: bool = False
    truncated: bool = field(init=False, default=False)

    @property
    def least(self) -> int:
        """The size that the file keeps, if somebody may append to it; else -1."""
        if not self.grows:
            return -1
        return int(self.ends[-1]) if len(self) else 0

    def __len__(self) -> int:
        return len(self.starts)

    def validate(self) -> RecordIndex:
        """Raise MetadataError unless every number is usable; returns itself.

        Records that reach past the end of the file are no error of the index: the file was cut, and the records
        before the cut are fine. ``truncated`` is set then, and whoever reads asks ``readable`` first.
        """
        n = len(self)
        bad = 0 if n and int(self.starts[0]) < 0 else _first_below(self.ends, self.starts)
        if bad is not None:
            raise MetadataError(f"{self.path}: record {bad} ends before it begins; the file's index is damaged")
        bad = _first_below(self.starts[1:], self.ends[:-1])
        if bad is not None:
            raise MetadataError(f"{self.path}: record {bad + 1} overlaps the one before; the file's index is damaged")
        if (self.checksums is None) != (self.check == CHECK_NONE) or (
            self.checksums is not None and len(self.checksums) != n
        ):
            raise MetadataError(f"{self.path}: the checksums do not belong to the records")
        object.__setattr__(self, "truncated", n > 0 and not self.readable(n - 1))
        if self.blocks is not None:
            self._validate_blocks(self.blocks)
        return self

    def with_blocks(self, blocks: BlockChecksums) -> RecordIndex:
        """The same index, which is valid, with block checksums; raises MetadataError when they do not belong to it."""
        index = replace(self, blocks=blocks)
        object.__setattr__(index, "truncated", self.truncated)
        index._validate_blocks(blocks)
        return index

    def _validate_blocks(self, blocks: BlockChecksums) -> None:
        """The table must name each large record once, with as many blocks as it has."""
        problem = f"{self.path}: the table of block checksums does not belong to the records"
        if self.check != CHECK_CRC32 or len(blocks.first_blocks) != len(blocks.records) + 1:
            raise MetadataError(problem)
        records = blocks.records.astype(np.int64)
        if len(records) and (int(records[-1]) >= len(self) or not bool((np.diff(records) > 0).all())):
            raise MetadataError(problem)
        lengths = self.ends[records] - self.starts[records]
        if not bool((lengths > BLOCK).all()):
            raise MetadataError(problem)
        counts = (lengths + (BLOCK - 1)) // BLOCK
        expected = np.concatenate([[0], np.cumsum(counts)])
        if not np.array_equal(blocks.first_blocks, expected.astype(np.uint64)) or expected[-1] != len(blocks.checksums):
            raise MetadataError(problem)

    def length(self, row: int) -> int:
        """The record's length in bytes, as the index claims it."""
        return int(self.ends[row]) - int(self.starts[row])

    def readable(self, row: int) -> bool:
        """Whether the file is long enough to hold the record."""
        return int(self.starts[row]) <= self.file_size and int(self.ends[row]) <= self.file_size

    def count_readable(self) -> int:
        """How many records the file is long enough to hold."""
        return int(np.count_nonzero((self.starts <= self.file_size) & (self.ends <= self.file_size)))


def _first_below(numbers: Int64Array, bounds: Int64Array) -> int | None:
    """The first k with numbers[k] < bounds[k], or None. In steps: temporaries of millions of items cost page faults."""
    for k in range(0, len(numbers), STEP):
        good = numbers[k : k + STEP] >= bounds[k : k + STEP]
        if not good.all():
            return k + int(np.argmin(good))
    return None
