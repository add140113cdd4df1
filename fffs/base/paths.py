"""Paths: their type in signatures, absolute paths, the refusal of empty ones, and names that nobody predicts."""

from __future__ import annotations

import os
from typing import Any

from fffs.errors import UsageError

PathLike = str | bytes | os.PathLike[Any]
"""Names are bytes on Linux; as text they are those of ``os.fsdecode``."""


def named(path: PathLike, what: str) -> str:
    """Return the path as text. Raises UsageError if it has a zero byte, or is empty: that is no current folder."""
    text = without_zero(path)
    if not text:
        raise UsageError(f"the name of {what} is empty")
    return text


def without_zero(path: PathLike) -> str:
    """Return the path as text. Raises UsageError if it has a zero byte, which no name has."""
    text = os.fsdecode(path)
    if "\0" in text:
        raise UsageError(f"{text!r}: no path has a zero byte")
    return text


def as_utf8(name: str) -> str:
    """Return a name as text that stands for the same bytes in every locale; ``of_utf8`` is the reverse."""
    return os.fsencode(name).decode("utf-8", "surrogateescape")


def of_utf8(text: str) -> str:
    """Return the name that ``as_utf8`` was given, as it is in this process."""
    return os.fsdecode(text.encode("utf-8", "surrogateescape"))


def current_folder() -> str:
    """Return the path of the current folder; an empty text if it has none, because it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def absolute_path(path: str, folder: str | None = None) -> str:
    """Return the absolute path of a file. folder: that relative paths begin in; None: the current folder.

    Symbolic links are not resolved, and ``LINK/..`` is kept: it is another folder than that of the link. Raises
    OSError: the current folder has no path.
    """
    parts = [part for part in path.split("/") if part not in ("", ".")]
    plain = "/".join(parts)
    joined = f"/{plain}" if path.startswith("/") else os.path.join(os.getcwd() if folder is None else folder, plain)
    first = next((k for k, part in enumerate(parts) if part != ".."), len(parts))
    return joined if ".." in parts[first:] else os.path.normpath(joined)


def is_same_file(path: PathLike, other: PathLike) -> bool:
    """Return whether two paths lead to one file or folder, also by a link or another mount. What is missing is none."""
    try:
        return os.path.samefile(path, other)
    except (OSError, ValueError):  # a zero byte in a name is a ValueError
        return False


def random_name(size: int) -> str:
    """Return that many random bytes in hexadecimal, for a name that nobody can predict.

    The module secrets has the same, but imports every hash, which would take every command some milliseconds.
    """
    return os.urandom(size).hex()
