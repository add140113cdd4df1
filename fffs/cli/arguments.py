"""Types of command-line arguments, for argparse: each function checks and converts a text."""

from __future__ import annotations

import argparse
import string
from collections.abc import Sequence

UNITS: dict[str, int] = {"": 1, **{f"{unit}B": 1000**k for k, unit in enumerate(("", "k", "M", "G", "T"))}}
UNITS |= {"KB": 1000, **{f"{unit}iB": 1024 ** (k + 1) for k, unit in enumerate("KMGT")}}


# Marks an argument that is not an option even if it begins with "-". A program's arguments cannot contain NUL.
PLAIN = "\0"


def after_dashes(arguments: Sequence[str]) -> list[str]:
    """Remove the ``--`` that ends the options, and mark the arguments after it with PLAIN.

    argparse handles ``--`` differently in each version of Python, and in no version after the name of a command.
    """
    words = list(arguments)
    if "--" not in words:
        return words
    end = words.index("--")
    return [*words[:end], *(PLAIN + word for word in words[end + 1 :])]


def filled(text: str) -> str:
    """Check the name of a file or folder. An empty one would mean the current folder to one command, / to another."""
    text = text.removeprefix(PLAIN)
    if not text:
        raise argparse.ArgumentTypeError("the name is empty (an unset variable?)")
    return text


def positive(text: str) -> int:
    """Parse a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def size(text: str) -> int:
    """Parse a size in bytes: a whole number, with or without a unit."""
    digits = text.rstrip(string.ascii_letters)
    unit = text[len(digits) :]
    if not digits.strip().isdecimal() or int(digits) < 1 or unit not in UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 500MB or 1GiB")
    return int(digits) * UNITS[unit]


def seconds(text: str) -> float:
    """Parse a number of seconds from 0.01 to 86400."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.01 <= number <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.01 to 86400")
    return number
