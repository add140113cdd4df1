"""Files that a data set reads, as states of loaders have them: whether those of two loaders can be the same."""

from __future__ import annotations

from collections import Counter
from typing import Any

Files = list[list[int | None]]
"""For each file, in the data set's order: a number for its framing, and one for its checksums (None: it has none)."""

HINT = "a run can be resumed only with the files that it began with"


def are_files(value: Any) -> bool:
    """Whether this can be files of a state."""
    return value is None or (
        type(value) is list
        and all(
            type(file) is list and len(file) == 2 and type(file[0]) is int and type(file[1]) in (int, type(None))
            for file in value
        )
    )


def why_others(then: Files, now: Files) -> str | None:
    """What is wrong with the files that a data set has now, in one line.

    None: they can be those of then. Data sets open files when they need them: either may have more.
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
        f"of then; {HINT}"
    )


def _are_among(few: Files, many: Files) -> bool:
    """Whether some of these files, in their order, can be those."""
    rest = iter(many)
    return all(any(_can_be(file, other) for other in rest) for file in few)


def _can_be(file: list[int | None], other: list[int | None]) -> bool:
    return file[0] == other[0] and (file[1] == other[1] or None in (file[1], other[1]))
