"""What the store process and its owner say to each other: frames of JSON and bytes, through pipes."""

from __future__ import annotations

import json
import os
import select
import struct
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

Message = dict[str, Any]

Condition = dict[str, str]
"""What must be true of an object for a store to replace it; nothing: it is replaced in any case. A header line, or a
version in the terms of obstore."""

NONE_THERE: Final[Condition] = {"If-None-Match": "*"}
"""There is no object of that key."""


class Guard(NamedTuple):
    """An object of the same bucket that must be there, and end with some text, when another one appears.

    message: what to say otherwise, after the name of the other one.
    """

    key: str
    ending: str
    message: str


_HEAD: Final = struct.Struct("<II")  # the lengths of the JSON and of the bytes after it
MAX_JSON: Final = 16 << 20  # a page of 1,000 keys of 1,024 bytes, each written as \uXXXX, needs less
MAX_PAYLOAD: Final = 64 << 20


class BrokenProtocolError(Exception):
    """The other end is gone, or what it said is not a message."""


def write_message(fd: int, message: Message, payload: bytes = b"") -> None:
    """Write a message to a pipe. Raises OSError if nobody reads it."""
    text = json.dumps(message).encode("ascii")  # ASCII: names that are not UTF-8 survive
    _write(fd, [_HEAD.pack(len(text), len(payload)), text, payload])


def _write(fd: int, parts: Sequence[bytes]) -> None:
    rest = memoryview(b"".join(parts))
    while rest:
        rest = rest[os.write(fd, rest) :]


def read_message(fd: int, deadline: float | None = None) -> tuple[Message, bytes]:
    """Read a message from a pipe.

    Args:
        fd: the pipe.
        deadline: the time of time.monotonic() at which to give up.

    Raises:
        BrokenProtocolError: the pipe ended, or what came is no message.
        TimeoutError.

    """
    json_size, payload_size = _HEAD.unpack(_read(fd, _HEAD.size, deadline))
    if json_size > MAX_JSON or payload_size > MAX_PAYLOAD:
        raise BrokenProtocolError("a message is too long")
    text, payload = _read(fd, json_size, deadline), _read(fd, payload_size, deadline)
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        raise BrokenProtocolError("a message is not JSON") from None
    if not isinstance(message, dict):
        raise BrokenProtocolError("a message is not an object of JSON")
    return message, payload


def _read(fd: int, size: int, deadline: float | None) -> bytes:
    data = bytearray()
    while len(data) < size:
        if deadline is not None and not is_readable(fd, deadline - time.monotonic()):
            raise TimeoutError
        piece = os.read(fd, min(size - len(data), 1 << 20))
        if not piece:
            raise BrokenProtocolError("the pipe ended")
        data += piece
    return bytes(data)


def is_readable(fd: int, seconds: float) -> bool:
    """Whether a pipe has data, or ends, within a time."""
    poll = select.poll()  # select.select refuses descriptors above 1,023
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(seconds, 0) * 1000))
