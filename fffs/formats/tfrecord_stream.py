"""TFRecordStream: reads a TFRecord file, compressed or not, from start to end in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from fffs.base.paths import PathLike
from fffs.base.withblock import Closing, closed_on_error
from fffs.errors import ChecksumError, ClosedError, MetadataError
from fffs.files.file import File
from fffs.formats.frames import FrameError, frame_error
from fffs.formats.streams import SIP, Stream
from fffs.formats.tfrecord import GZIP, HEAD, TAIL, ZLIB, compression, is_head
from fffs.native.checksums import crc32c, unmask
from fffs.objects.locations import open_in_order

LARGEST: Final = 1 << 30
RATIO: Final = 1032  # maximum number of bytes that DEFLATE expands a byte to
PENDING: Final = SIP * RATIO + (1 << 16)  # maximum number of bytes to come from input that was already read
KINDS: Final = {GZIP: "gz", ZLIB: "zlib"}


class TFRecordStream(Closing, Iterator[bytes]):
    """Iterates over the records of one file as bytes. It recognises compression with GZIP or ZLIB by the content.

    After a ChecksumError the iteration continues with the next record; after any other error it has ended. Needs memory
    for the largest record, twice, and for a few pieces. A context manager. Not thread-safe.

    Example: ``fffs.tfrecord.read``.
    """

    def __init__(self, path: PathLike, *, check_data: bool = True, max_record: int = LARGEST) -> None:
        """Open a file.

        check_data: compare the checksums of data; those of lengths are always compared. max_record: in bytes; a larger
        record raises FrameError.
        """
        self._file: File | None = open_in_order(os.fsdecode(path))
        self.path, self._size = self._file.name, self._file.size
        self._check, self._largest = check_data, max_record
        self._buffer, self._at = b"", 0
        self.record = 0
        self.offset = 0  # of the next frame, in the decompressed data
        self._stream: Stream | None = None
        with closed_on_error((self,)):
            kind = compression(self._file.read_bytes(0, HEAD.size))
        self._compressed = kind is not None
        self._stream = Stream(self._file, KINDS[kind] if kind else None)

    def __iter__(self) -> TFRecordStream:
        return self

    def __next__(self) -> bytes:
        """Return the next record. Raises FrameError, ChecksumError, ReadError, ClosedError."""
        if self._file is None:
            raise ClosedError(f"{self.path}: the stream has been closed")
        try:
            data = self._next_record()
        except ChecksumError:
            raise
        except BaseException as error:
            self._stream, self._buffer, self._at = None, b"", 0
            if isinstance(error, MetadataError) and not isinstance(error, FrameError):  # in the compressed data
                problem = str(error).removeprefix(f"{self.path}: ")
                raise frame_error(self.path, self.record, self.offset, problem) from error
            raise
        if data is None:
            raise StopIteration
        return data

    def _next_record(self) -> bytes | None:
        head = self._take(HEAD.size)
        if not head:
            return None
        self._demand(len(head) == HEAD.size, "the file ends inside the frame's head; it is truncated, copy it again")
        self._demand(is_head(head), "the checksum of its length is wrong; the file is damaged, or not a TFRecord file")
        (length, _) = HEAD.unpack(head)
        self._demand(length <= self._largest, f"it has {length} bytes, but max_record is {self._largest}")
        buffered = len(self._buffer) - self._at
        fits = length + TAIL.size <= buffered or self._can_come(length + TAIL.size - buffered)
        self._demand(
            fits,
            f"it claims {length} bytes, more than the rest of the file can hold; the file is truncated or damaged, "
            "copy it again",
        )
        data = self._take(length)
        tail = self._take(TAIL.size)
        self._demand(len(tail) == TAIL.size, "the file ends inside it; the file is truncated, copy it again")
        record, self.record = self.record, self.record + 1
        offset, self.offset = self.offset, self.offset + HEAD.size + length + TAIL.size
        expected, actual = unmask(TAIL.unpack(tail)[0]), crc32c(data) if self._check else 0
        if self._check and expected != actual:
            raise ChecksumError(
                f"{self.path}: record {record}, whose frame begins at offset {offset}: checksum mismatch (expected "
                f"{expected:#010x}, got {actual:#010x}); its bytes are damaged, other records are unaffected",
                path=self.path,
                record=record,
                number=record,
                expected=expected,
                actual=actual,
            )
        return data

    def _can_come(self, size: int) -> bool:
        """Return whether so many bytes may follow. Ignores bytes that were appended after the file was opened."""
        left = max(self._size - self._stream.done, 0) if self._stream else 0
        return size <= (left * RATIO + PENDING if self._compressed else left)

    def _demand(self, good: bool, problem: str) -> None:
        if not good:
            raise frame_error(self.path, self.record, self.offset, problem)

    def _take(self, size: int) -> bytes:
        """Return the next size bytes; fewer at the end. Allocates no more than it reads: size may be wrong."""
        if self._at + size <= len(self._buffer):
            data = self._buffer[self._at : self._at + size]
            self._at += size
            return data
        pieces, missing = [self._buffer[self._at :]], size - (len(self._buffer) - self._at)
        self._buffer, self._at = b"", 0
        while missing > 0:
            piece = self._stream.some() if self._stream else b""
            if not piece:
                break
            pieces.append(piece[:missing])
            self._buffer, self._at = piece, min(missing, len(piece))
            missing -= len(piece)
        return b"".join(pieces)

    def close(self) -> None:
        """Close the file. May be called again."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.close()
