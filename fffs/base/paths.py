"""PathLike: what functions that want a path take; named: one that may not be empty."""

from __future__ import annotations

import os
from typing import Any

from fffs.errors import UsageError

PathLike = str | bytes | os.PathLike[Any]
"""Names are bytes on Linux; as text they are those of ``os.fsdecode``."""


def named(path: PathLike, what: str) -> str:
    """The path as text. UsageError for an empty one, which abspath would take for the current folder."""
    text = os.fsdecode(path)
    if not text:
        raise UsageError(f"the name of {what} is empty")
    return text
