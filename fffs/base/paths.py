"""PathLike: the type of paths in signatures; named: refuses an empty path."""

from __future__ import annotations

import os
from typing import Any

from fffs.errors import UsageError

PathLike = str | bytes | os.PathLike[Any]
"""Names are bytes on Linux; as text they are those of ``os.fsdecode``."""


def named(path: PathLike, what: str) -> str:
    """Return the path as text. Raises UsageError if it is empty: abspath would take it for the current folder."""
    text = os.fsdecode(path)
    if not text:
        raise UsageError(f"the name of {what} is empty")
    return text
