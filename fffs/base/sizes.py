"""Sizes in bytes as people write them, and limits: a size, or a share of a space."""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Final

_UNITS: Final = {"": 1, "B": 1, "KB": 1000}
_UNITS.update({f"{unit}B": 1000 ** (k + 1) for k, unit in enumerate("kMGT")})
_UNITS.update({unit + rest: 1024 ** (k + 1) for k, unit in enumerate("KMGT") for rest in ("", "iB")})
EXAMPLES: Final = "500MB, 1GiB or 20G"


def parse_size(text: str) -> int:
    """Return the bytes of a size: a whole number, with or without a unit. ``G`` is ``GiB``, as in coreutils.

    Raises ValueError, with a text that says what is a size.
    """
    digits = text.rstrip(string.ascii_letters)
    unit = text[len(digits) :]
    if not digits.strip().isdecimal() or unit not in _UNITS:
        raise ValueError(f"{text!r} is not a size such as {EXAMPLES}")
    return int(digits) * _UNITS[unit]


@dataclass(frozen=True)
class Budget:
    """A limit: so many bytes, or if that is None, a share of a space."""

    bytes: int | None
    percent: int = 100

    def of(self, space: int) -> int:
        """Return the limit in bytes, where so many are free or used already."""
        return space * self.percent // 100 if self.bytes is None else self.bytes


HALF: Final = Budget(None, 50)


def parse_budget(value: str | int) -> Budget:
    """Return the limit that a text such as ``20G`` or ``30%``, or a number of bytes, means. Raises ValueError."""
    text = str(value)
    if text.endswith("%") and text[:-1].isdecimal() and int(text[:-1]) <= 100:
        return Budget(None, int(text[:-1]))
    try:
        return Budget(parse_size(text))
    except ValueError:
        raise ValueError(f"{text!r} is not a size such as {EXAMPLES}, nor a share such as 30%") from None
