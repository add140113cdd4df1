"""Decompresses a record of a ``.bagz``, which is one zstd frame, up to a limit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fffs.granular.optional import ZSTD, library

WINDOW_LOG = 27  # 128 MiB, the default limit of decompressors


def frames(what: str) -> tuple[Callable[[], Any], type[Exception]]:
    """Return a function that makes a decompressor of one frame, with a limit of its memory, and the exception that a
    decompressor raises.

    Raises:
        UsageError: no library of zstd is installed. what: what needs it, for the message.

    """
    zstd = library(ZSTD, what)
    options = {zstd.DecompressionParameter.window_log_max: WINDOW_LOG}
    return partial(zstd.ZstdDecompressor, options=options), zstd.ZstdError


class Decompressor:
    """Decompresses records of up to ``limit`` bytes each. May be used from any thread."""

    def __init__(self, limit: int) -> None:
        """Raises UsageError: no library of zstd is installed."""
        self.limit = limit
        self._new_frame, self._damage = frames("reading a .bagz")

    def __call__(self, data: Any) -> bytes:
        """Return the content of a record. An empty record has no frame.

        Raises:
            ValueError: the frame is incomplete, data follows it, or its content is larger than the limit.

        """
        if not len(data):
            return b""
        frame = self._new_frame()
        try:
            content: bytes = frame.decompress(data, self.limit + 1)
        except self._damage as error:
            raise ValueError(f"damaged compressed data: {error}") from None
        if len(content) > self.limit:
            raise ValueError(f"it has more than {self.limit} bytes when decompressed; increase max_record= to read it")
        if not frame.eof:
            raise ValueError("its compressed data is truncated")
        if frame.unused_data:
            raise ValueError("other data follows its compressed data")
        return content
