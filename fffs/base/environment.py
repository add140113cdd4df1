"""The environment variables of the engine. Imports neither numpy nor the engine."""

from __future__ import annotations

import os
from typing import Final

from fffs.errors import UsageError

BACKENDS: Final = ("uring", "aio", "pread")
"""The backends of the engine, best first."""


def check_backend(name: str, origin: str = "backend") -> str:
    """Return ``name`` if a backend is called so. Raises UsageError, whose message begins with ``origin``."""
    if name not in BACKENDS:
        raise UsageError(f"{origin}: {name!r} is not one of {', '.join(BACKENDS)}")
    return name


def wanted_backend() -> str | None:
    """Return the backend that FFFS_ENGINE names, or None. Raises UsageError."""
    name = os.environ.get("FFFS_ENGINE")
    return check_backend(name, "FFFS_ENGINE") if name else None


def wanted_threads() -> int | None:
    """Return the number of threads in FFFS_THREADS, or None. Raises UsageError."""
    value = os.environ.get("FFFS_THREADS")
    if value is None:
        return None
    if not value.isdecimal() or not 0 < int(value) < 2**31:
        raise UsageError(f"FFFS_THREADS must be a number of threads, at least 1, not {value!r}")
    return int(value)


def check() -> None:
    """Raise UsageError if a variable has an invalid value."""
    wanted_threads()
    wanted_backend()
