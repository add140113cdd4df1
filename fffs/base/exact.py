"""exact_array: an array of exactly the values given. numpy itself rounds integers and makes text of numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from fffs.base.buffers import is_masked

_NUMBERS: Final = {int, float, bool, complex, str, bytes}


def exact_array(value: Any) -> npt.NDArray[Any]:
    """Return the value as an array.

    Raises:
        ValueError: the array would hold other values: a mask would be lost, integers become floats, or numbers text.
        TypeError, OverflowError: numpy cannot make an array of it.

    """
    _refuse_masks(value)
    array = np.asarray(value)
    if isinstance(value, (list, tuple)) and array.dtype.kind in "biufcSU" and not _is_plain(value, array):
        _compare(value, array)
    return array


def _refuse_masks(value: Any) -> None:
    """Raise ValueError for masked arrays. numpy would drop the mask, or store NaN with a warning."""
    if is_masked(value):
        raise ValueError("a masked array: its mask would be lost; fill it, and keep the mask as an array of its own")
    if isinstance(value, (list, tuple)) and not set(map(type, value)) <= _NUMBERS:
        for item in value:
            _refuse_masks(item)


def _is_plain(value: list[Any] | tuple[Any, ...], array: npt.NDArray[Any]) -> bool:
    """Whether a list holds only numbers of one type, which numpy keeps exactly. Skips the slow comparison."""
    types = set(map(type, value))
    return len(types) == 1 and (types == {float} or (array.dtype.kind in "biu" and types <= {int, bool}))


def _compare(value: Any, array: npt.NDArray[Any]) -> None:
    items = list(_items(value))
    if array.dtype.kind in "fc" and items and all(isinstance(item, int) for item in items):
        raise ValueError(f"integers from {min(items)} to {max(items)} fit into no type together")
    for item, kept in zip(items, array.reshape(-1).tolist(), strict=True):
        if item != kept and not (item != item and kept != kept):  # NaN does not equal itself
            raise ValueError(f"{item!r:.60} would become {kept!r:.60} in an array of {array.dtype}")


def _items(value: Any) -> Iterator[Any]:
    """Yield the numbers and texts in nested lists; numpy's scalars as Python's."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _items(item)
    elif isinstance(value, (int, float, complex, str, bytes)):
        yield value
    else:
        yield from exact_array(value).reshape(-1).tolist()
