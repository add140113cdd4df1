"""Stopping: a flag that ends the waiting of C code in all threads that work for one caller."""

from __future__ import annotations

import contextlib
import threading
import time
from array import array
from collections.abc import Iterator
from typing import Final

_LOOK: Final = 0.2  # seconds

_current = threading.local()


class Stopped(Exception):  # noqa: N818 - not an error: it ends a thread whose work is not needed any more
    """Raised in the work of ``Jobs``, which expects it."""


class StopFlag:
    """Set it when the work is not needed any more. ``memory``: an int32, which C looks at; it lives as long as this."""

    def __init__(self) -> None:
        self.memory = array("i", [0])

    @property
    def is_set(self) -> bool:
        """Whether the work is not needed any more."""
        return bool(self.memory[0])

    def set(self) -> None:
        """Have reads of objects in the blocks of ``here`` fail soon."""
        self.memory[0] = 1

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """Make it the flag of this thread for the block."""
        before = current_flag()
        _current.flag = self
        try:
            yield
        finally:
            _current.flag = before


def current_flag() -> StopFlag | None:
    """Return the flag of this thread, if it has one."""
    flag: StopFlag | None = getattr(_current, "flag", None)
    return flag


def pause(deadline: float) -> float:
    """Return for how many seconds to wait before this is called again, until a time of time.monotonic().

    A signal that comes right before a wait does not end it.

    Raises TimeoutError, and Stopped: the flag of this thread is set.
    """
    flag, left = current_flag(), deadline - time.monotonic()
    if flag is not None and flag.is_set:
        raise Stopped
    if left <= 0:
        raise TimeoutError
    return min(left, _LOOK)
