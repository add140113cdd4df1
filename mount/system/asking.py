"""Asking the daemon of a mount about itself, through extended attributes of its root: it may be stopped, or stuck."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

PREFIX: Final = "user.fffs."
"""What all our extended attributes begin with."""

DAEMON: Final = PREFIX + "daemon"
"""The process id, and the namespace in which it is one. Of the root, not listed."""

STAT: Final = PREFIX + "stat"
"""Counters, as JSON. Of the root, not listed."""


def ask(path: str, attribute: str, seconds: float) -> bytes | OSError | None:
    """The attribute's value, or what came instead; None when nothing came in time."""
    return within(seconds, lambda: os.getxattr(path, attribute))


def within(seconds: float, call: Callable[[], T]) -> T | OSError | None:
    """What a call that asks a file system returns or raises; None when nothing came in time.

    It is asked in a thread, for nothing can take it back: the thread waits as long as that takes.
    """
    answers: queue.SimpleQueue[T | OSError] = queue.SimpleQueue()

    def work() -> None:
        try:
            answers.put(call())
        except OSError as error:
            answers.put(error)

    threading.Thread(target=work, daemon=True).start()
    try:
        return answers.get(timeout=seconds)
    except queue.Empty:
        return None
