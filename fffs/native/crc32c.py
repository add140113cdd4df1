"""CRC-32C (Castagnoli), plain and masked as in TFRecord."""

from __future__ import annotations

from typing import Any

from fffs.errors import EngineError
from fffs.native import ffi, lib

if lib.fffs_crc32c_self_test() != 0:  # pragma: no cover
    raise EngineError("this machine computes wrong CRC-32C checksums; TFRecord files cannot be read on it")

_from_buffer = ffi.from_buffer
_BYTES = ffi.typeof("uint8_t[]")


def crc32c(data: Any, crc: int = 0) -> int:
    """Return the CRC-32C of any contiguous buffer's bytes, continuing crc. Runs without the GIL."""
    view = _from_buffer(_BYTES, data)
    return int(lib.fffs_crc32c(crc, view, len(view)))


def crc32c_combine(crc_a: int, crc_b: int, length_b: int) -> int:
    """Return the CRC-32C of A followed by B, from the CRC-32C of each and the length of B in bytes."""
    return int(lib.fffs_crc32c_combine(crc_a, crc_b, length_b))


def mask(crc: int) -> int:
    """Return a checksum as TFRecord stores it."""
    return int(lib.fffs_crc32c_mask(crc))


def unmask(masked: int) -> int:
    """Return the checksum that TFRecord stores as masked."""
    rotated = (masked - 0xA282EAD8) & 0xFFFFFFFF
    return (rotated >> 17 | rotated << 15) & 0xFFFFFFFF
