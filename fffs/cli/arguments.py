"""Types of command-line arguments, for argparse: each function checks and converts a text. Options about stores."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator, Sequence

from fffs.base.sizes import EXAMPLES, parse_budget, parse_size
from fffs.objects.overrides import environment_of

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


def whole(text: str) -> int:
    """Parse a whole number of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return int(text)


def size(text: str) -> int:
    """Parse a size in bytes: a whole number, with or without a unit."""
    with contextlib.suppress(ValueError):
        if number := parse_size(text):
            return number
    raise argparse.ArgumentTypeError(f"{text!r} is not a size such as {EXAMPLES}")


def budget(text: str) -> str:
    """Check a size in bytes, or a share such as 30%."""
    try:
        parse_budget(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def seconds(text: str) -> float:
    """Parse a number of seconds from 0.01 to 86400."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.01 <= number <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.01 to 86400")
    return number


# ---------------------------------------------------------------- stores of objects


def add_store_options(parser: argparse.ArgumentParser, reads: bool = True) -> None:
    """Add the options about objects in stores. reads: False: only about their cache, which is not filled."""
    group = parser.add_argument_group("objects in stores" if reads else "the cache")
    more = "" if reads else ", or that of this user"
    what = "keep what is read of objects in DIR; off: keep nothing" if reads else "the folder"
    group.add_argument("--cache", type=filled, metavar="DIR", help=f"{what} (default: $FFFS_CACHE{more})")
    if reads:
        text = "the most that the cache keeps: 20G, or 30%% of the free space (default: $FFFS_CACHE_SIZE, or 50%%)"
        group.add_argument("--cache-size", type=budget, metavar="SIZE", help=text)
        text = "the S3 server (default: $AWS_ENDPOINT_URL, or that of Amazon)"
        group.add_argument("--endpoint-url", type=filled, metavar="URL", help=text)


@contextlib.contextmanager
def store_options(args: argparse.Namespace) -> Iterator[None]:
    """In the block, put the options about stores into the environment, also for processes that are started.

    Raises:
        UsageError: one is wrong.

    """
    given = (getattr(args, name, None) or "" for name in ("cache", "cache_size", "endpoint_url"))
    variables = environment_of(*given)
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
