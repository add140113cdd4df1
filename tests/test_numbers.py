"""Groups of bounded size."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from inside import divide

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
