"""Arguments of the command line: what each kind of them may be, and what is said when it is something else."""

from __future__ import annotations

import argparse
import string
from collections.abc import Sequence

UNITS: dict[str, int] = {"": 1, **{f"{unit}B": 1000**k for k, unit in enumerate(("", "k", "M", "G", "T"))}}
UNITS |= {"KB": 1000, **{f"{unit}iB": 1024 ** (k + 1) for k, unit in enumerate("KMGT")}}


# What stands before an argument that is no option although it may begin as one. No argument of a program has it.
PLAIN = "\0"


def after_dashes(arguments: Sequence[str]) -> list[str]:
    """Arguments without the ``--`` that ends the options; those behind it bear PLAIN.

    argparse knows ``--`` in other ways in each version of Python, and in none of them behind the name of a command.
    """
    words = list(arguments)
    if "--" not in words:
        return words
    end = words.index("--")
    return [*words[:end], *(PLAIN + word for word in words[end + 1 :])]


def filled(text: str) -> str:
    """The name of a file or folder. An empty one would be the current folder for one command, and / for another."""
    text = text.removeprefix(PLAIN)
    if not text:
        raise argparse.ArgumentTypeError("the name is empty (a variable that is not set?)")
    return text


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def size(text: str) -> int:
    """Bytes: a whole number, with or without a unit."""
    digits = text.rstrip(string.ascii_letters)
    unit = text[len(digits) :]
    if not digits.strip().isdecimal() or int(digits) < 1 or unit not in UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size, as in 500MB or 1GiB")
    return int(digits) * UNITS[unit]


def seconds(text: str) -> float:
    """A time, neither so short that nothing happens nor so long that nobody waits for it."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.01 <= number <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, from 0.01 to 86400")
    return number
