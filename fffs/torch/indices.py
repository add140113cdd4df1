"""What data sets are indexed with: lists of integers, and an integer as a list of one."""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from fffs.base.numbers import refuse_bools
from fffs.errors import UsageError


def several(indices: Any, count: int) -> list[Any] | None:
    """Return the indices for a data set of ``count`` samples as a list, or None for a single integer.

    Raises:
        TypeError: ``indices`` is neither.
        UsageError: it is a bool.

    """
    if isinstance(indices, slice):
        return list(range(*indices.indices(count)))
    if isinstance(indices, (np.ndarray, torch.Tensor)) and indices.ndim:
        listed: list[Any] = indices.tolist()
        return listed
    if isinstance(indices, Iterable) and not isinstance(indices, (str, bytes, torch.Tensor, np.ndarray)):
        return list(indices)
    refuse_bools([indices])
    try:
        operator.index(indices)
    except TypeError:
        raise TypeError(f"indices must be an integer or a list of integers, not {type(indices).__name__}") from None
    return None


def by_lists(get: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a ``__getitem__`` that takes integers, too, for one that takes lists."""

    @functools.wraps(get)
    def get_item(self: Any, indices: Any) -> Any:
        return _get_item(get, self, indices)  # all that cloudpickle takes along with a class of __main__

    return get_item


def _get_item(get: Callable[[Any, Any], Any], dataset: Any, indices: Any) -> Any:
    call = (id(dataset), get)
    if not _is_single(indices) or call in _calls.open:  # it makes lists of its own single samples
        return get(dataset, indices)
    refuse_bools([indices])
    number = operator.index(indices)
    _calls.open.add(call)
    try:
        samples = get(dataset, [number])
    finally:
        _calls.open.discard(call)
    if isinstance(samples, Iterator):
        samples = list(samples)
    if isinstance(samples, Mapping):  # has no samples by numbers
        return get(dataset, number)
    if type(samples) is list and not samples:  # an IndexError would end a loop over the data set
        raise UsageError(f"{type(dataset).__name__}.process returned no sample for record {number}")
    return samples[0]


class _Calls(threading.local):
    """The objects and functions that a thread has called with a list in place of an integer."""

    def __init__(self) -> None:
        self.open: set[tuple[int, Any]] = set()


_calls = _Calls()


def _is_single(indices: Any) -> bool:
    return not getattr(indices, "ndim", 0) and hasattr(type(indices), "__index__")
