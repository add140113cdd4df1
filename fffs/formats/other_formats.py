"""Recognises files that are not record files by their first bytes, so that an error can say what to do with them."""

from __future__ import annotations

from typing import Final

ZSTD: Final = b"\x28\xb5\x2f\xfd"  # RFC 8878, 3.1.1
HEAD: Final = 512  # bytes that ``describe`` needs
TAR_MAGIC: Final = slice(257, 262)  # in POSIX and GNU archives; older ones have none
COMPRESSED: Final = {b"\x1f\x8b\x08": "gz", b"BZh": "bz2", b"\xfd7zXZ\x00": "xz"}
ZIP: Final = (b"PK\x03\x04", b"PK\x05\x06")
PARQUET: Final = b"PAR1"
ENCRYPTED_PARQUET: Final = b"PARE"  # with a footer that is encrypted; Parquet's Encryption.md, 5.1
ARROW: Final = b"ARROW1\0\0"


def describe(head: bytes) -> str | None:
    """Return what a file that begins with head seems to be, for the end of a message, or None if it is unknown."""
    if head.startswith(ZSTD):
        return "compressed with zstd: decompress it first (zstd -d), or name it .bagz if it is a compressed Bag"
    if head.startswith(tuple(COMPRESSED)):
        return "a compressed file; fffs convert packs .tar.gz, .tar.bz2 and .tar.xz that are not damaged"
    if head.startswith(ZIP) or head[TAR_MAGIC] == b"ustar":
        return "an archive; fffs convert packs its content"
    if head.startswith((PARQUET, ARROW)):
        return "a table; fffs convert reads it"
    if head.startswith(ENCRYPTED_PARQUET):
        return "a Parquet file with an encrypted footer; decrypt it first"
    return None
