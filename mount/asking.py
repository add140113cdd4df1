"""Asking the daemon of a mount about itself, through extended attributes of its root: it may be stopped, or stuck."""

from __future__ import annotations

import os
import queue
import threading
from typing import Final

PREFIX: Final = "user.fffs."
"""What all our extended attributes begin with."""

DAEMON: Final = PREFIX + "daemon"
"""The process id, and the namespace in which it is one. Of the root, not listed."""

STAT: Final = PREFIX + "stat"
"""Counters, as JSON. Of the root, not listed."""


def ask(path: str, attribute: str, seconds: float) -> bytes | OSError | None:
    """The attribute's value, or what came instead; None when nothing came in time.

    It is asked in a thread, for nothing can take it back: the thread waits as long as that takes.
    """
    answers: queue.SimpleQueue[bytes | OSError] = queue.SimpleQueue()

    def work() -> None:
        try:
            answers.put(os.getxattr(path, attribute))
        except OSError as error:
            answers.put(error)

    threading.Thread(target=work, daemon=True).start()
    try:
        return answers.get(timeout=seconds)
    except queue.Empty:
        return None
