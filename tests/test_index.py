"""RecordIndex.validate: the properties that all readers depend on, in every format."""

from __future__ import annotations

import numpy as np
import pytest
from inside import CHECK_CRC32, CHECK_NONE, RecordIndex

from fffs.errors import MetadataError


def index(
    starts: list[int], ends: list[int], checksums: list[int] | None = None, check: int = CHECK_NONE
) -> RecordIndex:
    sums = None if checksums is None else np.array(checksums, np.uint32)
    return RecordIndex("x.bag", np.array(starts, np.int64), np.array(ends, np.int64), sums, check, 100)


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (index([-1, 5], [5, 9]), "record 0 ends before it begins"),
        (index([0, 9], [5, 8]), "record 1 ends before it begins"),
        (index([0, 4], [5, 9]), "record 1 overlaps the one before"),
        (index([0, 5, 5], [5, 9, 9]), "record 2 overlaps the one before"),
        (index([0], [5], [1]), "checksums do not belong"),
        (index([0], [5], None, CHECK_CRC32), "checksums do not belong"),
        (index([0], [5], [1, 2], CHECK_CRC32), "checksums do not belong"),
    ],
)
def test_an_index_that_nobody_can_read_by_is_refused(bad: RecordIndex, problem: str) -> None:
    with pytest.raises(MetadataError, match=rf"^x\.bag: .*{problem}"):
        bad.validate()


def test_records_may_be_empty_apart_and_cut_off() -> None:
    assert not index([0, 5, 5, 20], [5, 5, 9, 100]).validate().truncated
    assert not index([], []).validate().truncated
    cut = index([0, 50, 90], [50, 90, 101]).validate()
    assert cut.truncated and [cut.readable(row) for row in range(3)] == [True, True, False]
