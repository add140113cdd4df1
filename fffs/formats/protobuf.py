"""Encodes Protobuf's wire format, as far as messages of features need it. ``fffs/native/features.c`` decodes it."""

from __future__ import annotations

from typing import Any, Final

from fffs.errors import FormatError

BYTES: Final = 2
"""The wire type of bytes, strings, submessages and packed numbers."""


SMALL: Final = [bytes([k]) for k in range(128)]


class MessageError(FormatError):
    """A message is damaged, or not a message. ``offset`` is the position in it in bytes, or -1."""

    def __init__(self, problem: str, offset: int = -1) -> None:
        super().__init__(f"{problem} (at byte {offset} of the message)" if offset >= 0 else problem)
        self.problem = problem
        self.offset = offset

    def __reduce__(self) -> tuple[type[MessageError], tuple[str, int]]:
        return type(self), (self.problem, self.offset)


def as_bytes(message: Any) -> bytes:
    """Return a message, which may be any buffer, as bytes."""
    return message if type(message) is bytes else bytes(memoryview(message))


def encode_varint(value: int) -> bytes:
    """Encode a number from 0 to 2**64 - 1."""
    if value < 128:
        return SMALL[value]
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_bytes(number: int, *parts: bytes) -> bytes:
    """Encode a field (bytes, a string or a submessage) whose value is the parts, one after another."""
    size = sum(map(len, parts))
    return b"".join((encode_varint(number << 3 | BYTES), encode_varint(size), *parts))
