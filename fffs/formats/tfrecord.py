"""The TFRecord file format: recognises it, loads its index, writes it.

A frame is, little-endian: u64 length, u32 masked CRC-32C of those eight bytes, the data, u32 masked CRC-32C of it.
See FORMATS.md.
"""

from __future__ import annotations

import os
import re
import struct
from typing import Final

from fffs.errors import UnsupportedError, UsageError
from fffs.files.file import File
from fffs.formats.frame_writer import FrameWriter
from fffs.formats.frames import TFRECORD, FrameError, scan
from fffs.formats.frames import load_index as load_frames
from fffs.native.checksums import check_crc32c, crc32c, mask
from fffs.objects.locations import is_file, open_file
from fffs.records.index import RecordIndex

HEAD: Final = struct.Struct("<QI")
TAIL: Final = struct.Struct("<I")
NAME: Final = re.compile(r"\.tfrecords?\b|\.tfrec\b", re.ASCII)
"""Matches the usual names of TFRecord files."""

SIDECARS: Final = (".idx", ".tfindex")

GZIP, ZLIB = "GZIP", "ZLIB"


def encode_head(length: int) -> bytes:
    """Return the head of a frame with so many bytes of data."""
    word = struct.pack("<Q", length)
    return word + TAIL.pack(mask(crc32c(word)))


def compression(head: bytes) -> str | None:
    """Return how a file that begins with head is compressed: "GZIP", "ZLIB" or None.

    The length of a first record may look like either, but then its checksum matches.
    """
    if is_head(head):
        return None
    if head[:3] == b"\x1f\x8b\x08":
        return GZIP
    if len(head) >= 2 and head[0] & 15 == 8 and head[0] >> 4 < 8 and int.from_bytes(head[:2], "big") % 31 == 0:
        return ZLIB
    return None


def is_head(head: bytes) -> bool:
    """Return whether this is the head of a frame: a length with the right checksum."""
    return len(head) >= HEAD.size and head[: HEAD.size] == encode_head(HEAD.unpack_from(head)[0])


def recognise(head: bytes, size: int, path: str) -> bool:
    """Return whether a file of size bytes that begins with head (16 bytes or more, if it has them) is of this format.

    The checksum of the first length is conclusive. Files that are empty, compressed or damaged are recognised by name.
    """
    name = os.path.basename(path)
    return is_head(head) or (NAME.search(name) is not None and not name.endswith(SIDECARS))


def is_target(path: str) -> bool:
    """Return whether the name of a new file is that of a TFRecord file. Raises UsageError for a compressed one."""
    if NAME.search(os.path.basename(path)) is None:
        return False
    if path.endswith((".gz", ".zlib")):
        raise UsageError(f"{path}: compressed files cannot be written; write a .tfrecord, and compress it afterwards")
    return True


def is_compressed(path: str) -> bool:
    """Return whether path is a file that is compressed as a whole. Raises ReadError."""
    if not is_file(path):
        return False
    with open_file(path) as file:
        return compression(file.read_bytes(0, HEAD.size, "the first frame")) is not None


def load_index(file: File, check_data: bool = True) -> RecordIndex:
    """Load the index of a TFRecord file, from the cache or by a scan.

    check_data=False skips the checksums of lengths.

    Raises:
        FrameError: a frame is damaged or truncated (``partial_index`` returns the records before it).
        UnsupportedError: the file is compressed as a whole.
        ReadError, SourceChangedError.

    """
    check_crc32c()
    _refuse_compressed(file)
    return load_frames(file, TFRECORD, check_data)


def partial_index(file: File) -> tuple[RecordIndex, FrameError | None]:
    """Return the index of the records before the first bad frame, and the error for it or None.

    Raises UnsupportedError for a compressed file; otherwise as ``scan``.
    """
    check_crc32c()
    _refuse_compressed(file)
    return scan(file, TFRECORD)


def _refuse_compressed(file: File) -> None:
    kind = compression(file.read_bytes(0, HEAD.size, "the first frame"))
    if kind is not None:
        raise UnsupportedError(
            f"{file.name}: compressed as a whole ({kind}): its records can only be read in sequence, with "
            "fffs.tfrecord.read; decompress it to read them by number"
        )


class TFRecordWriter(FrameWriter):
    """Writes a TFRecord file, with the bytes that TensorFlow writes for the same records.

    Examples:
        >>> with fffs.tfrecord.TFRecordWriter("new.tfrecord") as writer:
        ...     writer.write_one(fffs.tfrecord.encode({"label": 1}))
        >>> os.path.getsize("new.tfrecord")
        34

    """

    def _around(self, data: memoryview, record: int) -> tuple[bytes, bytes]:
        return encode_head(data.nbytes), TAIL.pack(mask(crc32c(data)))

    def _load_index(self, file: File) -> RecordIndex:
        return load_index(file)
