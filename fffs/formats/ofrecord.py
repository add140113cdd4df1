"""The OFRecord file format (OneFlow's): recognises it, loads its index, writes it.

A frame is an int64 length, little-endian, and that many bytes, without checksum or magic number. See FORMATS.md.
"""

from __future__ import annotations

import os
import re
import struct
from typing import Final

import numpy as np

from fffs.errors import UnsupportedError, UsageError
from fffs.files.file import File
from fffs.formats import tfrecord
from fffs.formats.frame_writer import FrameWriter
from fffs.formats.frames import OFRECORD, FrameError, scan
from fffs.formats.frames import load_index as load_frames
from fffs.formats.record_writer import Target
from fffs.records.index import Int64Array, RecordIndex

HEAD: Final = struct.Struct("<q")
EMPTY_IN_A_ROW: Final = 1 << 16  # more empty records than that are taken for zeros that are not records
NAME: Final = re.compile(r"part-[0-9]{1,9}", re.ASCII)


def recognise(head: bytes, size: int, path: str) -> bool:
    """Return whether a file of size bytes that begins with head (16 bytes or more, if it has them) is of this format.

    There is no magic number. The content is recognised by a first frame that fits into the file and a message that
    begins like an entry of a map. Parts that are empty or damaged, or have other records, are recognised by their name.
    """
    if is_target(path):
        return True
    if len(head) < HEAD.size or tfrecord.is_head(head):
        return False
    (length,) = HEAD.unpack_from(head)
    return 0 < length <= size - HEAD.size and _begins_as_a_map(head[HEAD.size :], length)


def _begins_as_a_map(message: bytes, length: int) -> bool:
    """Return whether a message of that length begins with a field 1 that fits and itself begins with field 1 or 2."""
    if message[:1] != b"\n":
        return False
    size = shift = 0
    for k in range(1, min(len(message), 6)):
        size |= (message[k] & 127) << shift
        shift += 7
        if message[k] < 128:
            fits = size <= length - 1 - k
            inner = message[k + 1 : k + 2]
            return fits and (size == 0 or inner in (b"\n", b"\x12", b""))
    return False


def is_target(path: str) -> bool:
    """Return whether the name of a file is that of an OFRecord file."""
    name = os.path.basename(path)
    return NAME.fullmatch(name) is not None or name.endswith(".ofrecord")


def check_empty(lengths: Int64Array, path: str) -> str | None:
    """Return a warning about empty records, or None. Raises UnsupportedError if too many in a row could not be read
    back.
    """
    empty = lengths == 0
    if not empty.any():
        return None
    full = np.flatnonzero(~empty)
    if int(np.diff(np.concatenate([[-1], full, [len(lengths)]])).max()) - 1 > EMPTY_IN_A_ROW:
        raise UnsupportedError(
            f"{path}: more than {EMPTY_IN_A_ROW} empty records in a row cannot be read back; choose another format"
        )
    return f"{path}: {int(empty.sum())} empty records: OneFlow stops reading a file at such a record"


def load_index(file: File, check_data: bool = True) -> RecordIndex:
    """Load the index of an OFRecord file, from the cache or by a scan.

    check_data is unused, because there are no checksums.

    Raises:
        FrameError: a frame is damaged or truncated (``partial_index`` returns the records before it).
        ReadError, SourceChangedError.

    """
    return load_frames(file, OFRECORD, check=True)


def partial_index(file: File) -> tuple[RecordIndex, FrameError | None]:
    """Return the index of the records before the first bad frame, and the error for it or None. Raises as ``scan``."""
    return scan(file, OFRECORD)


class OFRecordWriter(FrameWriter):
    """Writes one file. Raises UsageError for an empty record unless ``allow_empty``: OneFlow stops reading there.

    Examples:
        >>> with fffs.ofrecord.OFRecordWriter("part-0") as writer:
        ...     writer.write_one(fffs.ofrecord.encode({"label": 1}))
        >>> fffs.open("part-0").n
        1

    """

    def __init__(self, fname: Target, *, allow_empty: bool = False) -> None:
        self._allow_empty = allow_empty
        super().__init__(fname)

    def _around(self, data: memoryview, record: int) -> tuple[bytes, bytes]:
        if not data.nbytes and not self._allow_empty:
            raise UsageError(
                f"{self.fname}: record {record} is empty, and OneFlow stops at empty records; add a feature, or "
                "set allow_empty"
            )
        return HEAD.pack(data.nbytes), b""

    def _load_index(self, file: File) -> RecordIndex:
        return load_index(file)
