"""Decompressing one record of a ``.bagz``: one zstd frame, never more than the caller's limit."""

from __future__ import annotations

from typing import Any

from fffs.granular.optional import ZSTD, library

WINDOW_LOG = 27  # 128 MiB: what decompressors accept unless they are told otherwise


class Decompressor:
    """Decompresses records of up to ``limit`` bytes each. May be used from any thread."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._zstd = library(ZSTD, "reading a .bagz")
        self._options = {self._zstd.DecompressionParameter.window_log_max: WINDOW_LOG}

    def __call__(self, data: Any) -> bytes:
        """The content of one record. An empty one has no frame.

        Raises:
            ValueError: it is no complete frame, something follows it, or its content is larger than the limit.

        """
        if not len(data):
            return b""
        frame = self._zstd.ZstdDecompressor(options=self._options)
        try:
            content: bytes = frame.decompress(data, self.limit + 1)
        except self._zstd.ZstdError as error:
            raise ValueError(f"damaged compressed data: {error}") from None
        if len(content) > self.limit:
            raise ValueError(f"it has more than {self.limit} bytes when decompressed; raise max_record= if it is good")
        if not frame.eof:
            raise ValueError("its compressed data is cut")
        if frame.unused_data:
            raise ValueError("something follows its compressed data")
        return content
