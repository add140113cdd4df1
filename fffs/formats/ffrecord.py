"""The FFRecord file format: recognising it, loading its index.

Format (all little-endian, HFAiLab/ffrecord): u32 CRC-32 of the metadata; i64 N; u32[N] CRC-32 of each record; i64[N]
absolute offsets; then the records, contiguous and in order. See FORMATS.md.
"""

from __future__ import annotations

import errno
import os
import struct
import warnings

import numpy as np

from fffs.errors import FormatError, MetadataError, ReadError, UnfinishedFileError, UsageError
from fffs.files.file import File
from fffs.formats import strangers
from fffs.native import engine
from fffs.native.engine import CHECK_CRC32
from fffs.records.index import RecordIndex
from fffs.records.store import room

HEADER = struct.Struct("<Iq")
SUFFIX = ".ffr"

LARGE = 64 << 20  # bytes of tables that are not read before they were looked through ...
PIECE = 8 << 20  # ... so many at a time


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


def recognise(head: bytes, size: int, path: str) -> bool:
    """Whether a file of size bytes that begins with head (12 bytes or more, if it has them) is of this format.

    There is no magic number. The tables of as many records as the header promises must fit into the file, and where
    head has the first offset, that must lie behind them. Empty and damaged files only have their name.
    """
    if os.path.basename(path).endswith(SUFFIX):
        return True
    if len(head) < HEADER.size:
        return False
    stored_crc, n = HEADER.unpack_from(head)
    if n == 0:
        return size == HEADER.size and stored_crc == engine.crc32(head[4:12])
    if not 0 < n <= (size - HEADER.size) // 12:
        return False
    at = HEADER.size + 4 * n
    return at + 8 > len(head) or header_size(n) <= int.from_bytes(head[at : at + 8], "little") <= size


def refuse_target(path: str) -> None:
    """Raise UsageError for a name that a new file cannot have: readers find parts by its end."""
    if not path.endswith(SUFFIX):
        raise UsageError(f"{path}: the name of a record file must end in {SUFFIX}")


def is_certain(file: File) -> bool:
    """Whether the tables of a file have the checksum in its header, which nothing else has by chance.

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

    check_data=False skips the comparison of the metadata's checksum, not the checks that make the index usable.

    Raises:
        MetadataError: the checksum is wrong, or the tables contradict the file's size or themselves.
        UnfinishedFileError: the header is all zero, as a writer that was killed leaves it.
        ReadError: the operating system could not read.

    Warns:
        LegacyFileWarning: the file has no checksum of its metadata.

    """
    path, size = file.name, file.current_size()
    head = file.read_bytes(0, HEADER.size, "the header")
    if len(head) < HEADER.size:
        raise MetadataError(f"{path}: too short for an FFRecord file ({len(head)} bytes); was it written completely?")
    stored_crc, n = HEADER.unpack(head)
    if stored_crc == 0 and n == 0 and size > HEADER.size:
        raise UnfinishedFileError(
            f"{path}: the header is empty: its writer was stopped before it finished; write it again"
        )
    # Before anything is allocated: the tables of n records must fit into the file.
    if n < 0 or n > (size - HEADER.size) // 12:
        raise _refusal(
            file,
            f"the header promises {n} records, more than its {size} bytes hold; damaged, or no FFRecord file "
            "(of another format? say which)",
        )
    if n == 0 and size > HEADER.size:
        raise _refusal(file, f"{size - HEADER.size} bytes follow a header of no records; the file is damaged")
    if stored_crc == 0:
        warnings.warn(
            f"{path}: the metadata has no checksum (an old writer, or damage); offsets are used as they are",
            LegacyFileWarning,
            stacklevel=2,
        )
    checksums, bounds = _read_tables(file, n, stored_crc if check_data and stored_crc else None)
    # A file cut inside the data: the last record has no end. Its start stands in for it, and readable() says no.
    bounds[n] = max(size, int(bounds[n - 1]) if n else 0)
    if n and int(bounds[0]) < header_size(n):
        raise MetadataError(f"{path}: record 0 begins inside the header; the file's index is damaged")
    return RecordIndex(path, bounds[:-1], bounds[1:], checksums, CHECK_CRC32, size).validate()


def _check_large_tables(file: File, n: int) -> None:
    """Look through the offsets of very many records before memory is claimed for them.

    A file can be mostly holes and have any size. Holes read as zeros, and offsets do not go back to zero.
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
    """The error for a header that cannot be: with the problem, unless the file seems to be something else."""
    stranger = strangers.describe(file.read_bytes(0, strangers.HEAD, "the header"))
    return MetadataError(f"{file.name}: {f'no record file, but {stranger}' if stranger else problem}")


def _read_tables(file: File, n: int, crc: int | None) -> tuple[np.ndarray, np.ndarray]:
    """The tables of n records, compared with the metadata's checksum unless it is None: uint32[n] and int64[n + 1].

    The last offset is not in the file: it is the caller's to set.
    """
    # The checksum covers N and the tables, so they are read as one record: by the engine, in parallel.
    covered = header_size(n) - 4
    if covered > LARGE:
        _check_large_tables(file, n)
    # Views must be aligned: in memory the offsets begin at a multiple of 8.
    begin = 4 * (n % 2)
    buffer = room(begin + covered + 8)
    status, actual = file.read_checked(4, buffer[begin : begin + covered], crc)
    if status == errno.EBADMSG:
        raise MetadataError(
            f"{file.name}: checksum of metadata mismached! (expected {crc:#010x}, got {actual:#010x}) "
            "The file is damaged, or not an FFRecord file"
        )
    if status == errno.ENODATA:
        raise MetadataError(f"{file.name}: the file ends inside its header; it was cut, copy it again")
    if status:
        raise ReadError(status, file.name, "the header")
    tables = buffer[begin + 8 :]
    return tables[: 4 * n].view(np.uint32), tables[4 * n : 12 * n + 8].view(np.int64)
