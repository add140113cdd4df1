"""Questions to the daemon of a mount, which may be stopped or stuck.

A question is a name that no file can have, because it is longer than ``NAME_MAX``: the kernel passes on names of up to
1024 bytes to a FUSE file system. The answer is the content of that file, which is in no listing. This works wherever
the mount can be seen, also in a container, needs no socket or file to be created, protected and removed, and costs
nothing as long as nobody asks. The permissions of the answer are those of the thing that is asked about.

Who answers may be anybody: every user may mount a FUSE file system and give it our type.
"""

from __future__ import annotations

import errno
import json
import math
import os
import queue
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

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


LARGEST: Final = 1 << 20
"""An answer of more bytes is none of ours: the longest has 64 KiB of names, each byte of which JSON may show as six."""

BUFFER: Final = 1 << 16
"""Bytes of one read."""

NESTED: Final = 4
"""How deeply lists and dictionaries of an answer may be nested."""

MALFORMED: Final = "its answer is not that of a daemon of fffs"


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
    """Return the answer, however long it takes. path: the folder that is asked. Raises OSError: EBADMSG: too long."""
    # By descriptor: a path may be as long as the system allows without the question. O_PATH asks the daemon nothing.
    folder = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # With a buffer of our size: without one, what the size of the file says would be allocated.
        with open(os.open(question, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder), "rb", BUFFER) as answer:
            content = answer.read(LARGEST + 1)
    finally:
        os.close(folder)
    if len(content) > LARGEST:
        raise malformed()
    return content


def read_facts(path: str, question: bytes) -> dict[str, Any]:
    """As ``read``, of an answer that is a JSON object. What is in it may be of any type. Raises OSError."""
    try:
        facts = json.loads(read(path, question))
    except (ValueError, RecursionError):
        raise malformed() from None
    if not isinstance(facts, dict) or not _is_plain(facts, NESTED):
        raise malformed()
    return facts


def malformed() -> OSError:
    """Return the error for every answer that a daemon does not give."""
    return OSError(errno.EBADMSG, MALFORMED)


def _is_plain(value: Any, levels: int) -> bool:
    """Whether a value from JSON can be printed as JSON: it is not nested more deeply, and has no infinite number."""
    if isinstance(value, (dict, list)):
        parts = value.values() if isinstance(value, dict) else value
        return levels > 0 and all(_is_plain(part, levels - 1) for part in parts)
    return not isinstance(value, float) or math.isfinite(value)


def within(seconds: float, call: Callable[[], T]) -> T | OSError | None:
    """Run a call that asks a file system. Returns its result or its OSError; None if it does not return in time. Raises
    what else the call raises.

    The call runs in a thread, which waits as long as the call takes: nothing can cancel it.
    """
    answers: queue.SimpleQueue[tuple[T] | BaseException] = queue.SimpleQueue()

    def work() -> None:
        try:
            answers.put((call(),))
        except BaseException as error:
            answers.put(error)

    threading.Thread(target=work, daemon=True).start()
    try:
        answer = answers.get(timeout=seconds)
    except queue.Empty:
        return None
    if isinstance(answer, tuple):
        return answer[0]
    if isinstance(answer, OSError):
        return answer
    raise answer
