"""RecordIndex: the position and checksum of each record of one file.

Numbers from a file become trusted only here: store, engine and mount take offsets and lengths only from a RecordIndex
that ``validate`` has accepted.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from fffs.errors import MetadataError
from fffs.native.checksums import CHECK_CRC32, CHECK_NONE
from fffs.native.engine import BLOCK

Int64Array = npt.NDArray[np.int64]
UInt32Array = npt.NDArray[np.uint32]
UInt64Array = npt.NDArray[np.uint64]

STEP = 1 << 16


@dataclass(frozen=True, eq=False)
class BlockChecksums:
    """CRC-32 of each block of 1 MiB of the records that are larger than one block.

    ``records`` uint32[b], ascending; ``first_blocks`` uint64[b + 1]: record ``records[k]`` has the checksums from
    ``first_blocks[k]`` to ``first_blocks[k + 1]`` of ``checksums`` uint32[blocks].
    """

    records: UInt32Array
    first_blocks: UInt64Array
    checksums: UInt32Array


@dataclass(frozen=True, eq=False)
class RecordIndex:
    """The positions of the records of one file. Immutable; may be shared between threads and inherited over fork.

    ``starts`` and ``ends`` are int64[n], file offsets in bytes. ``checksums`` is uint32[n] or None, and ``check`` the
    algorithm (``fffs.native.engine.CHECK_*``). ``file_size`` is the file's size when the index was loaded, ``format``
    the name of the file's format in messages. ``alignment``: if not 0, this is a packed folder whose files begin at
    multiples of 2**alignment bytes, with records of padding between them.
    """

    path: str
    starts: Int64Array
    ends: Int64Array
    checksums: UInt32Array | None
    check: int
    file_size: int
    blocks: BlockChecksums | None = None
    format: str = "FFRecord"
    alignment: int = 0
    truncated: bool = field(init=False, default=False)

    def __len__(self) -> int:
        return len(self.starts)

    def validate(self) -> RecordIndex:
        """Raise MetadataError unless all numbers are valid; return the index itself.

        Records beyond the end of the file are not an error of the index: the file was truncated, and its first records
        are good. ``truncated`` is then set, and readers must check ``readable`` first.
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

    def with_blocks(self, blocks: BlockChecksums, alignment: int = 0) -> RecordIndex:
        """Return a copy of this valid index with block checksums. Raises MetadataError if these do not fit."""
        index = replace(self, blocks=blocks, alignment=alignment)
        object.__setattr__(index, "truncated", self.truncated)
        index._validate_blocks(blocks)
        return index

    def _validate_blocks(self, blocks: BlockChecksums) -> None:
        """Raise MetadataError unless the table has each large record once, with all of its blocks."""
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
        """Return a record's length in bytes, according to the index."""
        return int(self.ends[row]) - int(self.starts[row])

    def readable(self, row: int) -> bool:
        """Whether the file is long enough for the record."""
        return int(self.starts[row]) <= self.file_size and int(self.ends[row]) <= self.file_size

    def count_readable(self) -> int:
        """Return how many records the file is long enough for."""
        return int(np.count_nonzero((self.starts <= self.file_size) & (self.ends <= self.file_size)))


def _first_below(numbers: Int64Array, bounds: Int64Array) -> int | None:
    """Return the first k with numbers[k] < bounds[k], or None. In steps: large temporaries cost page faults."""
    for k in range(0, len(numbers), STEP):
        good = numbers[k : k + STEP] >= bounds[k : k + STEP]
        if not good.all():
            return k + int(np.argmin(good))
    return None
