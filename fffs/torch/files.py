"""Compares the files that the data sets of two loaders read, as saved in the state of a loader."""

from __future__ import annotations

from collections import Counter
from typing import Any

Files = list[list[int | None]]
"""[checksum of the framing, checksum of the records' checksums or None] of each file, in the data set's order."""

HINT = "a run can be resumed only with the files that it began with"


def are_files(value: Any) -> bool:
    """Return whether a value is valid as the files of a state."""
    return value is None or (
        type(value) is list
        and all(
            type(file) is list and len(file) == 2 and type(file[0]) is int and type(file[1]) in (int, type(None))
            for file in value
        )
    )


def why_others(then: Files, now: Files) -> str | None:
    """Return how the files of a data set differ from those of a state, in one line, or None if they may be equal.

    Data sets may open files when they need them, so either list may be longer.
    """
    few, many = sorted((then, now), key=len)
    if _are_among(few, many):
        return None
    same = (Counter(map(tuple, then)) & Counter(map(tuple, now))).total()
    alike = (Counter(framing for framing, _ in then) & Counter(framing for framing, _ in now)).total()
    if _are_among([[framing, None] for framing, _ in few], many):
        return (
            f"the data set reads files whose records have changed since the run began: {alike - same} of {len(now)}, "
            f"by their checksums; {HINT}"
        )
    if same == len(few):
        return f"the data set reads the files that the run began with in another order; {HINT}"
    return (
        f"the data set reads other files than the run began with: of its {len(now)}, {same} are among the {len(then)} "
        f"of the run; {HINT}"
    )


def _are_among(few: Files, many: Files) -> bool:
    """Return whether ``few`` can be files of ``many``, in the same order."""
    rest = iter(many)
    return all(any(_can_be(file, other) for other in rest) for file in few)


def _can_be(file: list[int | None], other: list[int | None]) -> bool:
    return file[0] == other[0] and (file[1] == other[1] or None in (file[1], other[1]))
