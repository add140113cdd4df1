"""Checksums of records: the kinds, with the names that users see, and their computation in C.

All functions may be called from any thread, and take any contiguous buffer; they run without the GIL.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

from fffs.errors import EngineError
from fffs.native import ffi, lib

CHECK_NONE: Final[int] = lib.FFFS_CHECK_NONE
CHECK_CRC32: Final[int] = lib.FFFS_CHECK_CRC32
CHECK_CRC32C: Final[int] = lib.FFFS_CHECK_CRC32C

_from_buffer = ffi.from_buffer
_BYTES = ffi.typeof("uint8_t[]")


class Checksum(NamedTuple):
    """A kind of checksum: 32 bits, 0 for no bytes; that of A followed by B follows from those of A and B."""

    name: str
    """In ``fffs ls`` and in the names of extended attributes."""
    title: str
    compute: Callable[..., int]
    combine: Callable[[int, int, int], int]


CHECKSUMS: Final = {
    CHECK_CRC32: Checksum("crc32", "CRC-32", lib.fffs_crc32, lib.fffs_crc32_combine),
    CHECK_CRC32C: Checksum("crc32c", "CRC-32C", lib.fffs_crc32c, lib.fffs_crc32c_combine),
}
"""The kinds, by their ``CHECK_*`` numbers; records of ``CHECK_NONE`` have no checksum."""


@cache
def check_crc32c() -> None:
    """Raise EngineError if this machine computes wrong CRC-32C checksums.

    Called when the first one is needed: its tables take 3 ms, and most files have none.
    """
    if lib.fffs_crc32c_self_test() != 0:  # pragma: no cover
        raise EngineError("this machine computes wrong CRC-32C checksums; TFRecord files cannot be read on it")


def crc32(data: Any, crc: int = 0) -> int:
    """Return the CRC-32 (zlib's) of a buffer's bytes, continuing crc."""
    view = _from_buffer(_BYTES, data)
    return int(lib.fffs_crc32(crc, view, len(view)))


def crc32_combine(crc_a: int, crc_b: int, length_b: int) -> int:
    """Return the CRC-32 of A followed by B, from the CRC-32 of each and the length of B in bytes."""
    return int(lib.fffs_crc32_combine(crc_a, crc_b, length_b))


def crc32c(data: Any, crc: int = 0) -> int:
    """Return the CRC-32C (Castagnoli) of a buffer's bytes, continuing crc. Raises EngineError."""
    check_crc32c()
    view = _from_buffer(_BYTES, data)
    return int(lib.fffs_crc32c(crc, view, len(view)))


def mask(crc: int) -> int:
    """Return a CRC-32C as TFRecord stores it."""
    return int(lib.fffs_crc32c_mask(crc))


def unmask(masked: int) -> int:
    """Return the CRC-32C that TFRecord stores as masked."""
    rotated = (masked - 0xA282EAD8) & 0xFFFFFFFF
    return (rotated >> 17 | rotated << 15) & 0xFFFFFFFF


def checksum(check: int, data: Any) -> int:
    """Return the checksum of a kind of a buffer's bytes; 0 for ``CHECK_NONE``."""
    if check == CHECK_NONE:
        return 0
    view = _from_buffer(_BYTES, data)
    return int(CHECKSUMS[check].compute(0, view, len(view)))


def checksum_combine(check: int, crc_a: int, crc_b: int, length_b: int) -> int:
    """Return the checksum of a kind of A followed by B; 0 for ``CHECK_NONE``."""
    return 0 if check == CHECK_NONE else int(CHECKSUMS[check].combine(crc_a, crc_b, length_b))
