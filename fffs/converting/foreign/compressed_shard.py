"""CompressedShard: reads a compressed shard of MDS from its begin to its end, in bounded memory."""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from fffs.errors import MetadataError
from fffs.files.file import File
from fffs.formats.streams import Gunzip
from fffs.granular.zstd import frames

CHUNK: Final = 1 << 20
LARGEST: Final = 1 << 30
"""Bytes of a decompressed shard. Mosaic's have 64 MiB unless their writer wants something else."""


COMPRESSIONS: Final[dict[str, Callable[[], tuple[Callable[[], Any], type[Exception]]]]] = {
    "zstd": lambda: frames("reading shards compressed with zstd"),
    "gz": lambda: (Gunzip, zlib.error),
    "bz2": lambda: (bz2.BZ2Decompressor, OSError),
}
"""Return what makes a decompressor, by the names that MDS has for them, and the exception that this raises."""


class CompressedShard:
    """What a compressed file contains. Reading forward takes each byte once, reading backward begins again.

    ``name``: of the file, which its owner closes. ``size``: of the content. Not thread-safe.
    """

    def __init__(self, file: File, compression: str, size: int) -> None:
        """compression: one of ``COMPRESSIONS``. size: what the index lists; reading content of another size raises."""
        self.name, self.size = file.name, size
        self._file, self._compression = file, compression
        self._begin()

    def _begin(self) -> None:
        self._chunks, self._chunk, self._at = self._decompress(), b"", 0

    def read_bytes(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes at an offset, or those before the end.

        Raises:
            MetadataError: the file is damaged, or its content has another size. UsageError: a library is missing.
            ReadError.

        """
        if offset < self._at:
            self._begin()
        end, parts = min(offset + size, self.size), []
        while offset < end:
            if offset >= self._at + len(self._chunk):
                self._at += len(self._chunk)
                self._chunk = next(self._chunks)
            else:
                parts.append(self._chunk[offset - self._at : end - self._at])
                offset += len(parts[-1])
        return b"".join(parts)

    def _decompress(self) -> Iterator[bytes]:
        """Yield the content. The last part is only yielded if nothing follows it, and its checksum is right."""
        begin, damage = COMPRESSIONS[self._compression]()
        stream = begin()
        at, made, held = 0, 0, b""
        while not stream.eof:
            data = self._file.read_bytes(at, CHUNK) if stream.needs_input else b""
            at += len(data)
            if stream.needs_input and not data:
                raise self._damaged("is truncated")
            try:
                chunk = stream.decompress(data, CHUNK)
            except damage as error:
                raise self._damaged(f"is damaged ({error})") from None
            made += len(chunk)
            if made > self.size:
                raise self._damaged(f"has more than the {self.size} bytes that the index lists when decompressed")
            if chunk:
                if held:
                    yield held
                held = chunk
        if made < self.size:
            raise self._damaged(f"has {made} bytes when decompressed, and not {self.size}, as the index lists")
        if stream.unused_data or at < self._file.size:
            raise self._damaged("has other data after its compressed data")
        yield held

    def _damaged(self, what: str) -> MetadataError:
        return MetadataError(f"{self.name}: {what}; copy the shard again")
