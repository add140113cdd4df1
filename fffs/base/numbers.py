"""Record numbers: validates those of callers, resolves negative ones, and divides records into batches."""

from __future__ import annotations

import operator
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from fffs.base.importing import importing
from fffs.errors import RecordIndexError, UsageError

_MASK: Final = "record numbers must be integers, not bool; numpy.flatnonzero gives those of a mask"
Int64Array = npt.NDArray[np.int64]
Indices = Iterable[int] | npt.NDArray[np.integer[Any]]


def unique(values: Any, **options: Any) -> Any:
    """Return different values in ascending order, and with options the same as ``np.unique``.

    That imports ``numpy.ma`` when it is called first, which must not happen while another thread forks, and takes a
    moment. Without options, nothing is imported.
    """
    if options:
        with importing:
            import numpy.ma  # noqa: F401
        return np.unique(values, **options)
    ordered = np.sort(values, axis=None)
    is_first = np.ones(len(ordered), np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_first]


def isin(values: npt.NDArray[Any], wanted: Any) -> npt.NDArray[np.bool_]:
    """Return which values are among the wanted ones, as ``np.isin``, which imports as ``np.unique`` does."""
    ordered = np.sort(wanted, axis=None)
    if not len(ordered):
        return np.zeros(np.shape(values), np.bool_)
    places = np.searchsorted(ordered, values)
    found: npt.NDArray[np.bool_] = ordered[np.minimum(places, len(ordered) - 1)] == values
    return found


def resolve(indices: Indices, count: int) -> Int64Array:
    """Return record numbers as int64[k], each from 0 to count - 1.

    Args:
        indices: any iterable of integers, or an integer array of any shape; negative ones count from the end.
        count: the number of records.

    Raises:
        UsageError: an index is not an integer.
        RecordIndexError: there is no such record.

    """
    numbers, asked = _as_integers(indices)
    # As unsigned integers, negative numbers are the largest: one comparison shows that all are valid, the usual case.
    if len(numbers) == 0 or int(numbers.view(np.uint64).max()) < count:
        return numbers
    if asked.dtype == np.uint64 and int(asked.max()) >= 2**63:
        raise RecordIndexError(f"there is no record {int(asked.max())}: there are {count}")
    numbers = np.where(numbers < 0, numbers + count, numbers)
    wrong = (numbers < 0) | (numbers >= count)
    if wrong.any():
        first = int(asked[int(np.argmax(wrong))])
        raise RecordIndexError(no_record(first, count))
    return numbers


def no_record(number: int, count: int) -> str:
    """Return the message for a number beyond the records."""
    numbers = f"there are {count}, the numbers go from 0 to {count - 1}" if count else "there are none"
    return f"there is no record {number}: {numbers}"


def as_number(value: Any, what: str = "record numbers") -> int:
    """Return an integer of any type as int. Raises UsageError for anything else, also for bool."""
    try:
        if isinstance(value, np.integer) or not _is_bool(value):
            return operator.index(value)
    except TypeError:
        pass
    raise UsageError(f"{what} must be integers, not {type(value).__name__}")


def check_positive(**options: Any) -> None:
    """Raise UsageError for an option that is not a whole number of at least 1. None stands for a default."""
    for name, value in options.items():
        if value is not None and not _whole(value) >= 1:
            raise UsageError(f"{name} must be a whole number of at least 1, not {value!r}")


def is_within(value: Any, most: int) -> bool:
    """Whether a value is a whole number from 1 to another one."""
    return 1 <= _whole(value) <= most


def _whole(value: Any) -> int:
    """Return an integer of any type as int, and 0 for anything else."""
    try:
        return as_number(value)
    except UsageError:
        return 0


def refuse_bools(items: Iterable[Any]) -> None:
    """Raise UsageError if an item is a bool: Python takes it for 0 or 1, but the caller means a mask."""
    kinds = {kind for kind in set(map(type, items)) if kind is not int and not issubclass(kind, np.integer)}
    if kinds and any(_is_bool(item) for item in items if type(item) in kinds):
        raise UsageError(_MASK)


def _is_bool(value: Any) -> bool:
    """Whether a value is a bool of Python, numpy or torch (which is not imported here)."""
    return isinstance(value, (bool, np.bool_)) or str(getattr(value, "dtype", "")).endswith("bool")


def _as_integers(indices: Indices) -> tuple[Int64Array, npt.NDArray[Any]]:
    """Return the indices as int64[k], and as an array of their own type, for messages."""
    if isinstance(indices, (str, bytes, bytearray)):
        raise UsageError(f"record numbers must be integers, not {type(indices).__name__}")
    if not isinstance(indices, np.ndarray) and hasattr(indices, "dtype") and hasattr(indices, "tolist"):
        indices = np.array(indices.tolist())  # a tensor, on any device
    if hasattr(indices, "filled"):  # of numpy.ma, which is not imported here
        raise UsageError("record numbers must not be a masked array; its compressed() has those that are not masked")
    if isinstance(indices, np.ndarray):
        asked = indices.reshape(-1)
    else:
        items = indices if isinstance(indices, (list, tuple, range)) else list(indices)
        try:
            # Takes half the time of np.array, which examines each item twice.
            if items and not _is_bool(items[0]):
                refuse_bools(items)
                numbers = np.frombuffer(array("q", items), np.int64)
                return numbers, numbers
        except (TypeError, OverflowError):
            pass  # the code below says what is wrong
        refuse_bools(items)
        asked = _array_of(items)
    if asked.size == 0:
        return np.empty(0, np.int64), asked
    if asked.dtype.kind == "b":
        raise UsageError(_MASK)
    if asked.dtype.kind not in "iu" or asked.ndim != 1:
        raise UsageError(f"record numbers must be integers, not {asked.dtype}")
    return asked.astype(np.int64), asked


def _array_of(items: Collection[Any]) -> npt.NDArray[Any]:
    """Return an array of numbers that are not all integers of 64 bits. Raises UsageError, RecordIndexError."""
    try:
        asked = np.array(items)
    except ValueError:
        raise UsageError("record numbers must be integers, not lists of different lengths") from None
    if asked.dtype.kind in "fO":  # numpy's types for integers beyond 64 bits
        for item in items:
            if isinstance(item, int) and not -(2**63) <= item < 2**63:
                raise RecordIndexError(f"there is no record {item}: there are fewer")
    return asked


def divide(sizes: Int64Array, most: int, count: int, bounds: Sequence[int] = ()) -> Iterator[tuple[int, int]]:
    """Divide items into consecutive groups, each of at most ``count`` items and ``most`` bytes, or of one larger item.

    Args:
        sizes: int64[n]: the size of each item in bytes.
        most, count: the limits of a group.
        bounds: items that begin a new group, in order.

    Yields:
        The first item of a group, and the one after its last.

    """
    ends = np.cumsum(np.minimum(sizes, most + 1))  # a damaged file may claim sizes whose sum int64 cannot hold
    for begin, stop in zip([0, *bounds], [*bounds, len(sizes)], strict=True):
        first = begin
        while first < stop:
            before = ends[first - 1] if first else 0
            fitting = np.searchsorted(ends[first : min(first + count, stop)], before + most, side="right")
            last = first + max(int(fitting), 1)
            yield first, last
            first = last


def distinct(numbers: Int64Array) -> list[int]:
    """Return the different numbers in an array of small ones, in order: for each batch, in half of the time of
    ``unique`` or less.
    """
    return np.flatnonzero(np.bincount(numbers)).tolist()
