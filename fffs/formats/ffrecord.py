"""The FFRecord file format: recognises it, loads its index, encodes its header.

Format (all little-endian, HFAiLab/ffrecord): u32 CRC-32 of the metadata; i64 N; u32[N] CRC-32 of each record; i64[N]
absolute offsets; then the records, contiguous and in order. See FORMATS.md.
"""

from __future__ import annotations

import errno
import os
import struct
import warnings

import numpy as np

from fffs.base import as_ffrecord
from fffs.errors import FormatError, MetadataError, UnfinishedFileError, UsageError
from fffs.files.file import File
from fffs.formats import other_formats
from fffs.native.checksums import CHECK_CRC32, crc32
from fffs.records.index import RecordIndex
from fffs.records.store import room

HEADER = struct.Struct("<Iq")
SUFFIX = ".ffr"
LARGEST_OFFSET = (1 << 63) - 1

LARGE = 64 << 20  # bytes: the offsets of larger tables are checked before the tables are read into memory ...
PIECE = 8 << 20  # ... in pieces of so many bytes


class LegacyFileWarning(UserWarning):
    """The metadata of a file has no checksum: an old version of ffrecord wrote the file, or the file is damaged.

    Examples:
        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore", fffs.LegacyFileWarning)
        ...     reader = fffs.FileReader("train.ffr")

    """


def header_size(n: int) -> int:
    """Return the offset of the first of n records, in bytes."""
    return HEADER.size + 12 * n


def encode_header(checksums: np.ndarray, offsets: np.ndarray) -> bytes:
    """Return the header of a file with these uint32[n] CRC-32 of the records and int64[n] absolute offsets."""
    n = len(checksums)
    body = struct.pack("<q", n) + checksums.astype("<u4").tobytes() + offsets.astype("<i8").tobytes()
    return struct.pack("<I", crc32(body)) + body


def recognise(head: bytes, size: int, path: str) -> bool:
    """Return whether a file of size bytes that begins with head (12 bytes or more, if it has them) is of this format.

    There is no magic number. The tables for the number of records in the header must fit into the file. If head
    contains the first offset, it must lie after the tables. Damaged files and those of 0 bytes only have their name.
    """
    if os.path.basename(path).endswith(SUFFIX):
        return True
    if len(head) < HEADER.size:
        return False
    stored_crc, n = HEADER.unpack_from(head)
    if n == 0:
        return size == HEADER.size and stored_crc == crc32(head[4:12])
    if not 0 < n <= (size - HEADER.size) // 12:
        return False
    at = HEADER.size + 4 * n
    return at + 8 > len(head) or header_size(n) <= int.from_bytes(head[at : at + 8], "little") <= size


def refuse_target(path: str) -> None:
    """Raise UsageError if a new file cannot have this name: readers find parts by their suffix."""
    if not path.endswith(SUFFIX):
        raise UsageError(f"{path}: the name of a record file must end in {SUFFIX}")


def is_certain(file: File) -> bool:
    """Return whether the tables of a file match the checksum in its header. In other files this is next to impossible.

    Raises ReadError.
    """
    head = file.read_bytes(0, HEADER.size, "the header")
    if not any(head[:4]):
        return False  # no checksum
    try:
        load_index(file)
    except FormatError:
        return False
    return True


def load_index(file: File, check_data: bool = True) -> RecordIndex:
    """Load and validate the index of an FFRecord file.

    check_data=False skips the checksum of the metadata, but not the checks that make the index usable.

    Raises:
        MetadataError: the checksum is wrong, or the tables contradict the file's size or themselves.
        UnfinishedFileError: the header is all zeros, because the writer was killed.
        ReadError: the operating system could not read.

    Warns:
        LegacyFileWarning: the metadata has no checksum.

    """
    path, size = file.name, file.current_size()
    head = file.read_bytes(0, HEADER.size, "the header")
    if len(head) < HEADER.size:
        raise MetadataError(
            f"{path}: not a record file, or not written completely: {len(head)} bytes are too few for an FFRecord file"
        )
    stored_crc, n = HEADER.unpack(head)
    if stored_crc == 0 and n == 0 and size > HEADER.size:
        raise UnfinishedFileError(
            f"{path}: the header is empty, because its writer was stopped before it finished; write it again"
        )
    # Check before anything is allocated that the tables of n records fit into the file.
    if n < 0 or n > (size - HEADER.size) // 12:
        raise _refusal(
            file,
            f"not a record file, or damaged: as an FFRecord file it would have more records than fit into {size} "
            "bytes; if it has another format, specify that",
        )
    if n == 0 and size > HEADER.size:
        raise _refusal(file, f"{size - HEADER.size} bytes follow a header for 0 records; the file is damaged")
    if stored_crc == 0:
        warnings.warn(
            f"{path}: the metadata has no checksum (an old writer, or damage); the offsets are used without it",
            LegacyFileWarning,
            stacklevel=2,
        )
    checksums, bounds = _read_tables(file, n, stored_crc if check_data and stored_crc else None)
    bounds[n] = _end_of_last(int(bounds[n - 1]), int(checksums[n - 1]), size) if n else size
    if n and int(bounds[0]) < header_size(n):
        raise MetadataError(f"{path}: record 0 begins inside the header; the file's index is damaged")
    return RecordIndex(path, bounds[:-1], bounds[1:], checksums, CHECK_CRC32, size).validate()


def _end_of_last(start: int, checksum: int, size: int) -> int:
    """Return where the last record ends, which is the end of the file.

    If the file is truncated where it begins, or before, its length is not known. As if it had a byte, it is not
    readable. A mount would not be asked for the bytes of an empty file, which would look good.
    """
    is_there = size > start or (size == start and checksum == crc32(b""))
    return size if is_there else min(start + 1, LARGEST_OFFSET)


def _check_large_tables(file: File, n: int) -> None:
    """Raise MetadataError unless the offsets of very many records ascend. Call this before allocating memory for them.

    A sparse file can have any size. Its holes are read as zeros, which are never valid offsets.
    """
    piece = np.empty(PIECE // 8, np.int64)
    last = header_size(n)
    for begin in range(0, n, len(piece)):
        part = piece[: n - begin]
        got = file.read_at(12 + 4 * n + 8 * begin, part.view(np.uint8), "the header")
        if got != part.nbytes or int(part[0]) < last or not bool((part[1:] >= part[:-1]).all()):
            raise MetadataError(
                f"{file.name}: the offsets of its {n} records do not ascend; the file's index is damaged"
            )
        last = int(part[-1])


def _refusal(file: File, problem: str) -> MetadataError:
    """Return the error for an impossible header: the problem, or what the file seems to be instead."""
    other = other_formats.describe(file.read_bytes(0, other_formats.HEAD, "the header"))
    return MetadataError(f"{file.name}: {f'not a record file, but {other}' if other else problem}")


def _read_tables(file: File, n: int, crc: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the checksums and offsets of n records: uint32[n] and int64[n + 1]. The caller sets the last offset.

    crc: the checksum of the metadata, which is compared, or None.
    """
    # The checksum covers N and the tables. The engine reads all of them as one record, in parallel.
    covered = header_size(n) - 4
    if covered > LARGE:
        _check_large_tables(file, n)
    # Views must be aligned, so the offsets begin at a multiple of 8 in memory.
    begin = 4 * (n % 2)
    buffer = room(begin + covered + 8)
    status, actual = file.read_checked(4, buffer[begin : begin + covered], crc)
    if status == errno.EBADMSG:
        mismatch = (
            "checksum of metadata mismached!" if as_ffrecord.is_installed() else "checksum mismatch of the header"
        )
        raise MetadataError(
            f"{file.name}: {mismatch} (expected {crc:#010x}, got {actual:#010x}); the file is damaged, or not an "
            "FFRecord file"
        )
    if status == errno.ENODATA:
        raise MetadataError(f"{file.name}: the file ends inside its header; it is truncated, copy it again")
    if status:
        raise file.failure(status, "the header")
    tables = buffer[begin + 8 :]
    return tables[: 4 * n].view(np.uint32), tables[4 * n : 12 * n + 8].view(np.int64)
