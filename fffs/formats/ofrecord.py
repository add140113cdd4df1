"""The OFRecord file format (OneFlow's): recognising it, loading its index, writing it.

A frame is an int64 length, little-endian, and that many bytes: no checksum, no magic number. See FORMATS.md.
"""

from __future__ import annotations

import os
import re
import struct
from typing import Final

import numpy as np

from fffs.base.paths import PathLike
from fffs.errors import UnsupportedError, UsageError
from fffs.files.file import File
from fffs.formats import tfrecord
from fffs.formats.frame_writer import FrameWriter
from fffs.formats.frames import OFRECORD, FrameError, scan
from fffs.formats.frames import load_index as load_frames
from fffs.records.index import Int64Array, RecordIndex

HEAD: Final = struct.Struct("<q")
EMPTY_IN_A_ROW: Final = 1 << 16  # more empty records than that are read as zeros that are no records
NAME: Final = re.compile(r"part-[0-9]+", re.ASCII)


def recognise(head: bytes, size: int, path: str) -> bool:
    """Whether a file of size bytes that begins with head (16 bytes or more, if it has them) is of this format.

    There is no magic number. A first frame that fits into the file, with a message that begins as a map's entry does,
    is what the content can say. A name says so where it cannot: of an empty or damaged part, and of one with records of
    any bytes.
    """
    if NAME.fullmatch(os.path.basename(path)):
        return True
    if len(head) < HEAD.size or tfrecord.is_head(head):
        return False
    (length,) = HEAD.unpack_from(head)
    return 0 < length <= size - HEAD.size and _begins_as_a_map(head[HEAD.size :], length)


def _begins_as_a_map(message: bytes, length: int) -> bool:
    """Whether a message of that length begins with field 1, of a length that fits, and in it with field 1 or 2."""
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
    """Whether the name of a new file says that it is a part of OFRecords."""
    name = os.path.basename(path)
    return NAME.fullmatch(name) is not None or name.endswith(".ofrecord")


def check_empty(lengths: Int64Array, path: str) -> str | None:
    """A warning about empty records, if there are some. Raises UnsupportedError: they could not be read again."""
    empty = lengths == 0
    if not empty.any():
        return None
    full = np.flatnonzero(~empty)
    if int(np.diff(np.concatenate([[-1], full, [len(lengths)]])).max()) - 1 > EMPTY_IN_A_ROW:
        raise UnsupportedError(f"{path}: so many empty records in a row cannot be told from no records in OFRecord")
    return f"{path}: {int(empty.sum())} empty records: OneFlow stops reading a file at such a record"


def load_index(file: File, check_data: bool = True) -> RecordIndex:
    """Load the index of the OFRecord file: from the cache, or by a scan.

    check_data means nothing here: there is no checksum to compare.

    Raises:
        FrameError: a frame is damaged or cut (``partial_index`` has the records before it).
        ReadError, SourceChangedError.

    """
    return load_frames(file, OFRECORD, check=True)


def partial_index(file: File) -> tuple[RecordIndex, FrameError | None]:
    """The index of the records before the first frame that is damaged or cut, and what is wrong with that one."""
    return scan(file, OFRECORD)


class OFRecordWriter(FrameWriter):
    """Writes one part. An empty message is refused unless ``allow_empty`` is set: OneFlow cannot read it."""

    def __init__(self, fname: PathLike, *, allow_empty: bool = False) -> None:
        self._allow_empty = allow_empty
        super().__init__(fname)

    def _around(self, data: memoryview) -> tuple[bytes, bytes]:
        if not data.nbytes and not self._allow_empty:
            raise UsageError(
                f"{self.fname}: record {self.count} is empty, and OneFlow stops at empty records; write a feature, or "
                "set allow_empty"
            )
        return HEAD.pack(data.nbytes), b""

    def _load_index(self, file: File) -> RecordIndex:
        return load_index(file)
