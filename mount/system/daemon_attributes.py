"""What a daemon tells of itself through extended attributes of its root, and asking it; it may be stopped or stuck."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

PREFIX: Final = "user.fffs."
"""The prefix of all our extended attributes."""

DAEMON: Final = PREFIX + "daemon"
"""The daemon's process id and its namespace. An attribute of the root, not listed."""

STAT: Final = PREFIX + "stat"
"""The counters, as JSON. An attribute of the root, not listed."""


def identity() -> bytes:
    """Return the process id of this process and its namespace; 0, which is not an id, if /proc is missing."""
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = 0
    return b"%d %d" % (os.getpid(), namespace)


def ask(path: str, attribute: str, seconds: float) -> bytes | OSError | None:
    """Return the value of the attribute, or the error; None if there is no reply in time."""
    return within(seconds, lambda: os.getxattr(path, attribute))


def within(seconds: float, call: Callable[[], T]) -> T | OSError | None:
    """Run a call that asks a file system. Returns its result or its OSError; None if it does not return in time.

    The call runs in a thread, which waits as long as the call takes: nothing can cancel it.
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
