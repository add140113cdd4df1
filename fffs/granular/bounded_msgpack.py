"""Packs and unpacks msgpack with limits, so that a small blob cannot make the decoder allocate much memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fffs.granular.optional import library

# Up to this size the library's own limits suffice: each of at most 1024 nested arrays can allocate 8 bytes per byte.
SMALL = 8 << 10
DEEPEST = 256
MOST = 1 << 24  # values in a blob

_SIZED = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4}
_FIXED = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4}
_FIXED |= {0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}


def pack(value: Any, default: Callable[[Any], Any] | None = None) -> bytes:
    """Pack a structure. default: converts objects that msgpack does not support."""
    packed: bytes = library("msgpack", "the types array, msgpack and tree").packb(value, default=default)
    return packed


def unpack(blob: bytes, list_hook: Callable[[list[Any]], Any] | None = None) -> Any:
    """Unpack the structure in a blob. list_hook: called for each list, innermost first.

    Raises:
        ValueError: not msgpack, data follows it, keys are neither str nor bytes, or it is nested too deeply.

    """
    msgpack = library("msgpack", "the types array, msgpack and tree")
    if len(blob) > SMALL:
        check(blob)
    try:
        return msgpack.unpackb(blob, list_hook=list_hook)
    except (ValueError, msgpack.UnpackException, OverflowError, TypeError) as error:
        raise ValueError(f"not msgpack: {str(error)[:200] or type(error).__name__}") from None


def check(blob: bytes) -> None:
    """Parse msgpack without building objects. Raises ValueError if it claims more values than it has bytes for."""
    at, end = 0, len(blob)
    values, open_ends = 1, [0]  # how many values are announced; how many follow each open container
    left = 1
    while True:
        while left == 0:
            if len(open_ends) == 1:
                return
            left = open_ends.pop()
        if at >= end:
            raise ValueError("it is truncated")
        left -= 1
        code = blob[at]
        items, at = _step(blob, code, at + 1)
        if items:
            values += items
            if values > min(end, MOST):
                raise ValueError(f"it claims {values} values or more in {end} bytes")
            if len(open_ends) > DEEPEST:
                raise ValueError(f"it is nested deeper than {DEEPEST}")
            open_ends.append(left)
            left = items


def _step(blob: bytes, code: int, at: int) -> tuple[int, int]:
    """Return how many values the value before ``at`` contains, and the offset after its header and its bytes."""
    if code < 0x80 or code >= 0xE0:
        return 0, at
    if code < 0x90:
        return 2 * (code & 15), at
    if code < 0xA0:
        return code & 15, at
    if code < 0xC0:
        return 0, at + (code & 31)
    if code in _FIXED:
        return 0, at + _FIXED[code]
    if code in _SIZED:
        width = _SIZED[code]
        extension = 0xC7 <= code <= 0xC9
        return 0, at + width + int.from_bytes(blob[at : at + width], "big") + extension
    if code >= 0xDC:
        width = 2 if code in (0xDC, 0xDE) else 4
        return int.from_bytes(blob[at : at + width], "big") * (2 if code >= 0xDE else 1), at + width
    raise ValueError(f"not msgpack: code {code:#04x}")
