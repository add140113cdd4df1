"""The FFRecord file format: recognising it, loading its index.

Format (all little-endian, HFAiLab/ffrecord): u32 CRC-32 of the metadata; i64 N; u32[N] CRC-32 of each record; i64[N]
absolute offsets; then the records, contiguous and in order. See FORMATS.md.
"""

from __future__ import annotations

import os
import struct
import warnings

import numpy as np

from fffs import engine
from fffs.engine import CHECK_CRC32
from fffs.errors import MetadataError, ReadError, UnfinishedFileError
from fffs.index import RecordIndex

HEADER = struct.Struct("<Iq")
SUFFIX = ".ffr"


class LegacyFileWarning(UserWarning):
    """The file was written by a version of ffrecord that stored no checksum of the metadata."""


def header_size(n: int) -> int:
    """Where the first of n records begins, in bytes."""
    return HEADER.size + 12 * n


def encode_header(checksums: np.ndarray, offsets: np.ndarray) -> bytes:
    """The metadata of a file: uint32[n] CRC-32 of the records and their int64[n] absolute offsets, as bytes."""
    n = len(checksums)
    body = struct.pack("<q", n) + checksums.astype("<u4").tobytes() + offsets.astype("<i8").tobytes()
    return struct.pack("<I", engine.crc32(body)) + body


def _read_into(fd: int, array: np.ndarray, offset: int, path: str) -> None:
    """Fill array from the file at offset."""
    view = memoryview(array).cast("B") if array.size else memoryview(b"")
    done = 0
    while done < len(view):
        try:
            got = os.preadv(fd, [view[done:]], offset + done)
        except OSError as error:
            raise ReadError(error.errno or 5, path, "the header") from error
        if got == 0:
            raise MetadataError(f"{path}: the file ends inside its header; it was cut, copy it again")
        done += got


def load_index(fd: int, path: str, check_data: bool = True) -> RecordIndex:
    """Load and validate the index of the FFRecord file open as fd, which stays the caller's.

    check_data=False skips the comparison of the metadata's checksum, not the checks that make the index usable.

    Raises:
        MetadataError: the checksum is wrong, or the tables contradict the file's size or themselves.
        UnfinishedFileError: the header is all zero, as a writer that was killed leaves it.
        ReadError: the operating system could not read.

    Warns:
        LegacyFileWarning: the file has no checksum of its metadata.

    """
    size = os.fstat(fd).st_size
    if size < HEADER.size:
        raise MetadataError(f"{path}: too short for an FFRecord file ({size} bytes); was it written completely?")
    head = np.empty(HEADER.size, np.uint8)
    _read_into(fd, head, 0, path)
    stored_crc, n = HEADER.unpack(head.tobytes())
    if stored_crc == 0 and n == 0 and size > HEADER.size:
        raise UnfinishedFileError(
            f"{path}: the header is empty: its writer was stopped before it finished; write it again"
        )
    # Before anything is allocated: the tables of n records must fit into the file.
    if n < 0 or n > (size - HEADER.size) // 12:
        raise MetadataError(
            f"{path}: the header promises {n} records, more than its {size} bytes hold; damaged, or no FFRecord file"
        )
    if n == 0 and size > HEADER.size:
        raise MetadataError(
            f"{path}: a file of no records, followed by {size - HEADER.size} bytes; damaged, or no FFRecord file"
        )
    checksums = np.empty(n, np.uint32)
    # One array for starts and ends: record i ends where i + 1 begins, the last one at the end of the file.
    bounds = np.empty(n + 1, np.int64)
    _read_into(fd, checksums, HEADER.size, path)
    _read_into(fd, bounds[:n], HEADER.size + 4 * n, path)
    if check_data or stored_crc == 0:
        _check_metadata(stored_crc, head, checksums, bounds[:n], path)
    # A file cut inside the data: the last record has no end. Its start stands in for it, and readable() says no.
    bounds[n] = max(size, int(bounds[n - 1]) if n else 0)
    if n and int(bounds[0]) < header_size(n):
        raise MetadataError(f"{path}: record 0 begins inside the header; the file's index is damaged")
    return RecordIndex(path, bounds[:-1], bounds[1:], checksums, CHECK_CRC32, size).validate()


def _check_metadata(stored: int, head: np.ndarray, checksums: np.ndarray, offsets: np.ndarray, path: str) -> None:
    if stored == 0:
        warnings.warn(
            f"{path}: the metadata has no checksum (an old writer, or damage); offsets are used as they are",
            LegacyFileWarning,
            stacklevel=2,
        )
        return
    actual = engine.crc32(offsets, engine.crc32(checksums, engine.crc32(head[4:])))
    if actual != stored:
        raise MetadataError(
            f"{path}: checksum of metadata mismached! (expected {stored:#010x}, got {actual:#010x}) "
            "The file is damaged, or not an FFRecord file"
        )
