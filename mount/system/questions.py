"""Questions to the daemon of a mount, which may be stopped or stuck.

A question is a name that no file can have, because it is longer than ``NAME_MAX``: the kernel passes on names of up to
1024 bytes to a FUSE file system. The answer is the content of that file, which is in no listing. This works wherever
the mount can be seen, also in a container, needs no socket or file to be created, protected and removed, and costs
nothing as long as nobody asks. The permissions of the answer are those of the thing that is asked about.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

PREFIX: Final = b"fffs?".ljust(256, b".")
"""What all questions begin with: one byte longer than a file's name can be."""

DAEMON: Final = PREFIX + b"daemon"
"""Asked of the root: the daemon's process id and its namespace."""

STAT: Final = PREFIX + b"stat"
"""Asked of the root: the counters, as JSON. Only root and the user who mounted may ask."""

ENTRY: Final = PREFIX + b"entry:"
"""Followed by a name and asked of its folder: where the bytes of the file come from, as JSON. Without a name, the
folder itself is meant. Who may read the file may ask."""


def identity() -> bytes:
    """Return the process id of this process and its namespace; 0, which is not an id, if /proc is missing."""
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = 0
    return b"%d %d" % (os.getpid(), namespace)


def ask(path: str, question: bytes, seconds: float) -> bytes | OSError | None:
    """Return the answer, or the error; None if there is no reply in time. path: the folder that is asked."""
    return within(seconds, lambda: read(path, question))


def read(path: str, question: bytes) -> bytes:
    """Return the answer, however long it takes. path: the folder that is asked. Raises OSError."""
    # By descriptor: a path may be as long as the system allows without the question. O_PATH asks the daemon nothing.
    folder = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with open(os.open(question, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder), "rb", buffering=0) as answer:
            return answer.read()
    finally:
        os.close(folder)


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
