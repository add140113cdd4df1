"""Stream: reads a file from start to end and decompresses it, in bounded memory."""

from __future__ import annotations

import bz2
import lzma
import re
import zlib
from typing import Any, Final, Protocol

from fffs.errors import MetadataError, UnsupportedError
from fffs.files.file import File
from fffs.formats.other_formats import COMPRESSED

READ: Final = 1 << 18  # bytes that are read from the file at a time
# Bytes that a decompressor gets at a time. Few, because it copies the rest at the end of each of many short streams.
SIP: Final = 1 << 13
PIECE: Final = 1 << 20  # maximum number of bytes that a decompressor returns at a time
XZ_MEMORY: Final = 256 << 20  # maximum number of bytes of memory for decompressing .xz; xz -9 needs 65 MiB

TOO_LARGE: Final = "Memory usage limit exceeded"  # liblzma's LZMA_MEMLIMIT_ERROR, as Python's lzma words it

NOT_ZERO: Final = re.compile(rb"[^\0]")


def compression(head: bytes) -> str | None:
    """Return how a file that begins with head is compressed, a kind for ``Stream`` ("gz", "bz2" or "xz"), or None."""
    return next((kind for magic, kind in COMPRESSED.items() if head.startswith(magic)), None)


class _Machine(Protocol):
    """The interface of the decompressors of bz2 and lzma."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    @property
    def needs_input(self) -> bool: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class Gunzip:
    """zlib's decompressor with the interface of those of bz2 and lzma."""

    def __init__(self, bits: int = 31) -> None:
        self._machine = zlib.decompressobj(bits)
        self._full = False  # whether more output may be available without further input

    @property
    def eof(self) -> bool:
        """Whether the stream has ended."""
        return self._machine.eof

    @property
    def unused_data(self) -> bytes:
        """What follows the stream in the last data."""
        return self._machine.unused_data

    @property
    def needs_input(self) -> bool:
        """Whether more output needs more data."""
        return not self._machine.unconsumed_tail and not self._full

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        """Return at most so many decompressed bytes; -1: all of them. Raises zlib.error."""
        found = self._machine.decompress(self._machine.unconsumed_tail + data, max_length)
        self._full = len(found) == max_length
        return found


_MACHINES: Final[dict[str, Any]] = {
    "gz": Gunzip,
    "zlib": lambda: Gunzip(15),
    "deflate": lambda: Gunzip(-15),
    "bz2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, XZ_MEMORY),
}


class Stream:
    """Reads and decompresses a file, or a part of it, from the start. Not thread-safe."""

    def __init__(self, file: File, kind: str | None, start: int = 0, end: int | None = None) -> None:
        """file: stays the caller's. kind: "gz", "bz2", "xz", "zlib" or "deflate"; None: not compressed. start, end:
        offsets of the part, which is one compressed stream. A whole file may be several, except with "zlib".
        """
        self._file, self.path, self._kind = file, file.name, kind
        self._machine: _Machine | None = None if kind is None else _MACHINES[kind]()
        self._place, self._end = start, end  # _place: offset of the next read from the file
        self._loaded, self._at = b"", 0  # bytes of the file; those from _at on are not yet passed to the decompressor
        self._buffer = memoryview(b"")
        self.position = 0
        """Number of bytes returned or skipped."""

    @property
    def done(self) -> int:
        """The offset in the file up to which its bytes were used."""
        return self._place - len(self._buffer if self._machine is None else self._loaded[self._at :])

    def some(self) -> bytes:
        """Return the next available bytes, at most PIECE; none at the end. Raises as ``read``."""
        if not self._buffer:
            self._fill()
        piece, self._buffer = self._buffer.tobytes(), memoryview(b"")
        self.position += len(piece)
        return piece

    def read(self, size: int) -> bytes:
        """Return the next bytes: size of them, or all up to the end. Raises MetadataError, ReadError."""
        pieces = []
        while size > 0 and (self._buffer or self._fill()):
            piece, self._buffer = self._buffer[:size], self._buffer[size:]
            pieces.append(piece)
            size -= len(piece)
            self.position += len(piece)
        return b"".join(pieces)

    def skip(self, size: int) -> bool:
        """Skip size bytes. Return whether there were so many. Raises MetadataError, ReadError."""
        if self._machine is None:
            skipped = min(size, len(self._buffer))
            self._buffer = self._buffer[skipped:]
            self._place += size - skipped
            self.position += size
            return self._place <= (self._file.current_size() if self._end is None else self._end)
        while size > 0 and (self._buffer or self._fill()):
            skipped = min(size, len(self._buffer))
            self._buffer = self._buffer[skipped:]
            self.position += skipped
            size -= skipped
        return size == 0

    def drain(self) -> None:
        """Skip all remaining bytes, so that the checksums at the end are compared. Raises as ``skip``."""
        while self._machine is not None and self._fill():
            pass

    def _load(self) -> bytes:
        """Read the next bytes of the file, not decompressed."""
        size = READ if self._end is None else min(READ, max(self._end - self._place, 0))
        data = self._file.read_bytes(self._place, size)
        self._place += len(data)
        return data

    def _fill(self) -> bool:
        """Replace the buffer with the next bytes. Return whether there are any."""
        self._buffer = memoryview(self._load() if self._machine is None else self._decompress())
        return bool(self._buffer)

    def _decompress(self) -> bytes:
        while True:
            assert self._machine is not None
            if self._machine.eof and not self._begin_next():
                return b""
            part = self._sip() if self._machine.needs_input else b""
            try:
                data = self._machine.decompress(part, PIECE)
            except (zlib.error, lzma.LZMAError, OSError, ValueError, EOFError) as error:
                if str(error) == TOO_LARGE:
                    needed = f"{XZ_MEMORY >> 20} MiB of memory"
                    raise UnsupportedError(
                        f"{self.path}: more than {needed} are needed to decompress it; decompress it with xz"
                    ) from None
                raise MetadataError(f"{self.path}: its compressed data is damaged ({error})") from None
            if self._machine.eof:
                self._at -= len(self._machine.unused_data)
            if data:
                return data

    def _sip(self) -> bytes:
        if self._at == len(self._loaded):
            self._loaded, self._at = self._load(), 0
        part = self._loaded[self._at : self._at + SIP]
        if not part:
            raise MetadataError(f"{self.path}: its compressed data ends too early; it is truncated, copy it again")
        self._at += len(part)
        return part

    def _begin_next(self) -> bool:
        """Begin the next compressed stream, after zeros that may pad the last one. Return whether there is one. pigz,
        pbzip2 and cat write files of several streams.
        """
        if self._end is not None:
            return False
        while (found := NOT_ZERO.search(self._loaded, self._at)) is None:
            self._loaded, self._at = self._load(), 0
            if not self._loaded:
                return False
        self._at = found.start()
        if self._kind == "zlib":
            raise MetadataError(f"{self.path}: bytes follow the end of its compressed data; the file is damaged")
        self._machine = _MACHINES[str(self._kind)]()
        return True
