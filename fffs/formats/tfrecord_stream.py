"""TFRecord files read from their beginning to their end, also compressed ones, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fffs.base.paths import PathLike
from fffs.base.withblock import Closing, closed_on_error
from fffs.errors import ChecksumError, ClosedError, MetadataError
from fffs.files.file import File
from fffs.files.local import LocalFile
from fffs.formats.frames import FrameError, frame_error
from fffs.formats.streams import SIP, Stream
from fffs.formats.tfrecord import GZIP, HEAD, TAIL, ZLIB, compression, is_head
from fffs.native.crc32c import crc32c, unmask

LARGEST: Final = 1 << 30
RATIO: Final = 1032  # DEFLATE makes no more than so many bytes of one ...
PENDING: Final = SIP * RATIO + (1 << 16)  # ... and so many of what was taken from the file are still to come
KINDS: Final = {GZIP: "gz", ZLIB: "zlib"}


class TFRecordStream(Closing, Iterator[bytes]):
    """Iterates over the records of one file, plain or compressed with GZIP or ZLIB (found out from its content).

    After a ChecksumError the next record can be asked for; after any other error the stream has ended. Memory is that
    of the largest record, twice, and a few pieces. A context manager; not thread-safe.
    """

    def __init__(self, path: PathLike, *, check_data: bool = True, max_record: int = LARGEST) -> None:
        """check_data: compare the checksums of data (those of lengths are always). max_record: refuse larger ones."""
        self._file: File | None = LocalFile.open(path)
        self.path, self._size = self._file.name, self._file.size
        self._check, self._largest = check_data, max_record
        self._buffer, self._at = b"", 0
        self.record = 0
        self.offset = 0  # of the frame, in what the file decompresses to
        self._stream: Stream | None = None
        with closed_on_error((self,)):
            kind = compression(self._file.read_bytes(0, HEAD.size))
        self._compressed = kind is not None
        self._stream = Stream(self._file, KINDS[kind] if kind else None)

    def __iter__(self) -> TFRecordStream:
        return self

    def __next__(self) -> bytes:
        """The next record. Raises FrameError, ChecksumError, ReadError, ClosedError."""
        if self._file is None:
            raise ClosedError(f"{self.path}: the stream has been closed")
        try:
            data = self._next_record()
        except ChecksumError:
            raise
        except BaseException as error:
            self._stream, self._buffer, self._at = None, b"", 0
            if isinstance(error, MetadataError) and not isinstance(error, FrameError):  # of what is compressed
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
        self._demand(len(head) == HEAD.size, "the file ends inside what the frame begins with; it was cut")
        self._demand(is_head(head), "the checksum of its length is wrong; the file is damaged, or no TFRecord file")
        (length, _) = HEAD.unpack(head)
        self._demand(length <= self._largest, f"it has {length} bytes, and max_record is {self._largest}")
        buffered = len(self._buffer) - self._at
        fits = length + TAIL.size <= buffered or self._can_come(length + TAIL.size - buffered)
        self._demand(
            fits, f"it claims {length} bytes, more than the rest of the file can hold; it was cut or is damaged"
        )
        data = self._take(length)
        tail = self._take(TAIL.size)
        self._demand(len(tail) == TAIL.size, "the file ends inside it; the file was cut, copy it again")
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
        """Whether so many bytes may still come. Of a file that grows, only what was there when it was opened."""
        left = max(self._size - self._stream.done, 0) if self._stream else 0
        return size <= (left * RATIO + PENDING if self._compressed else left)

    def _demand(self, good: bool, problem: str) -> None:
        if not good:
            raise frame_error(self.path, self.record, self.offset, problem)

    def _take(self, size: int) -> bytes:
        """The next size bytes; fewer at the end. What is claimed is allocated only as it comes."""
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
