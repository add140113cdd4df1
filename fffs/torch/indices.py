"""What data sets are indexed with, and what they return for it: lists of integers, and one sample for each."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Set
from typing import Any

import numpy as np
import torch

from fffs.base.numbers import refuse_bools
from fffs.base.text import plural
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


def only_sample(found: Any, dataset: Any) -> Any:
    """Return the sample that a batch of one has. Raises as ``listed``."""
    return listed(found, 1, dataset)[0]


def listed(found: Any, count: int, dataset: Any) -> list[Any]:
    """Return the samples of a batch. Raises UsageError: they are no samples, or not so many."""
    samples = _samples(found)
    if samples is None or len(samples) != count:
        what = type(found).__name__ if samples is None else plural(len(samples), "sample")
        raise UsageError(
            f"{type(dataset).__name__} returned {what} for {plural(count, 'record')}; single samples, and data sets "
            "that are joined, need a list with one for each record"
        )
    return samples


def _samples(found: Any) -> list[Any] | None:
    if isinstance(found, (Mapping, Set, str, bytes)) or hasattr(found, "columns"):  # a table gives its columns
        return None
    try:
        samples = iter(found)
    except TypeError:  # also an array without dimensions
        return None
    return list(samples)
