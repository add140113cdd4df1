"""Groups of bounded size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inside import divide, resolve

from fffs.errors import RecordIndexError, UsageError

SIZES = st.lists(st.sampled_from([0, 1, 5, 20, 2**62]), max_size=30)


@given(SIZES, st.integers(1, 30), st.integers(1, 9), st.data())
def test_groups_are_as_large_as_their_limits_allow(
    sizes: list[int], most: int, count: int, data: st.DataObject
) -> None:
    n = len(sizes)
    bounds = sorted(data.draw(st.sets(st.integers(0, n), max_size=3)))
    groups = list(divide(np.array(sizes, np.int64), most, count, bounds))
    assert [item for first, last in groups for item in range(first, last)] == list(range(n))
    for first, last in groups:
        assert last - first <= count
        assert last - first == 1 or sum(sizes[first:last]) <= most
        assert not any(first < bound < last for bound in bounds)
        if last < n and last not in bounds and last - first < count:
            assert sum(sizes[first : last + 1]) > most


def test_a_masked_array_is_refused_also_as_numbers() -> None:
    masked = np.ma.masked_array(np.arange(3), mask=[False, True, False])
    with pytest.raises(UsageError, match="masked array"):
        resolve(masked, 3)
    assert resolve(masked.compressed(), 3).tolist() == [0, 2]


def test_lists_of_different_lengths_are_no_numbers() -> None:
    with pytest.raises(UsageError, match="must be integers, not"):
        resolve([[0], [1, 2]], 3)  # type: ignore[list-item]


def test_the_message_for_a_number_names_those_that_exist() -> None:
    with pytest.raises(RecordIndexError, match=r"there is no record 3: there are 3, the numbers go from 0 to 2$"):
        resolve([3], 3)
    with pytest.raises(RecordIndexError, match=r"there is no record 0: there are none$"):
        resolve([0], 0)
