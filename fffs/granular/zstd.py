"""Decompresses a record of a ``.bagz``, which is one zstd frame, up to a limit."""

from __future__ import annotations

from typing import Any

from fffs.granular.optional import ZSTD, library

WINDOW_LOG = 27  # 128 MiB, the default limit of decompressors


class Decompressor:
    """Decompresses records of up to ``limit`` bytes each. May be used from any thread."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._zstd = library(ZSTD, "reading a .bagz")
        self._options = {self._zstd.DecompressionParameter.window_log_max: WINDOW_LOG}

    def __call__(self, data: Any) -> bytes:
        """Return the content of a record. An empty record has no frame.

        Raises:
            ValueError: the frame is incomplete, data follows it, or its content is larger than the limit.

        """
        if not len(data):
            return b""
        frame = self._zstd.ZstdDecompressor(options=self._options)
        try:
            content: bytes = frame.decompress(data, self.limit + 1)
        except self._zstd.ZstdError as error:
            raise ValueError(f"damaged compressed data: {error}") from None
        if len(content) > self.limit:
            raise ValueError(f"it has more than {self.limit} bytes when decompressed; increase max_record= to read it")
        if not frame.eof:
            raise ValueError("its compressed data is truncated")
        if frame.unused_data:
            raise ValueError("other data follows its compressed data")
        return content
