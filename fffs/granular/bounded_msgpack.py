"""Packs and unpacks msgpack with limits, so that a small blob cannot make the decoder allocate much memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fffs.granular.optional import library
from fffs.native import ffi, lib

# The objects of a blob may take this many bytes, or this many for each byte of the blob. Numbers, texts, and containers
# of several items always fit; the number of containers with one item or none is limited, to a million or more.
MEMORY = 256 << 20
FACTOR = 38

_PROBLEMS = {
    lib.FFFS_MSGPACK_TRUNCATED: "it is truncated",
    lib.FFFS_MSGPACK_CLAIM: "it claims more values than it has bytes",
    lib.FFFS_MSGPACK_CODE: "not msgpack: a code that no value has",
    lib.FFFS_MSGPACK_MEMORY: "its values would take too much memory",
}


def _msgpack() -> Any:
    return library("msgpack", "each of the types array, msgpack and tree")


def pack(value: Any, default: Callable[[Any], Any] | None = None) -> bytes:
    """Pack a structure. default: converts objects that msgpack does not support."""
    packed: bytes = _msgpack().packb(value, default=default)
    return packed


def unpack(blob: bytes, list_hook: Callable[[list[Any]], Any] | None = None) -> Any:
    """Unpack the structure in a blob. list_hook: called for each list, innermost first.

    Raises:
        ValueError: not msgpack, data follows it, keys are neither str nor bytes, or it is nested too deeply.

    """
    msgpack = _msgpack()
    check(blob)
    try:
        return msgpack.unpackb(blob, list_hook=list_hook)
    except (ValueError, msgpack.UnpackException, OverflowError, TypeError) as error:
        raise ValueError(f"not msgpack: {str(error)[:200] or type(error).__name__}") from None


def check(blob: bytes) -> None:
    """Raise ValueError if a blob claims more values than it has bytes, or if its values would take too much memory."""
    status = lib.fffs_msgpack_check(ffi.from_buffer("uint8_t[]", blob), len(blob), max(MEMORY, FACTOR * len(blob)))
    if status:
        raise ValueError(f"{_PROBLEMS[status]} ({len(blob)} bytes)")
