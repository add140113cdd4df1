"""The codecs of granular 0.24, by the whole text of a type, with those of videos."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from fffs.errors import UsageError
from fffs.granular import codecs
from fffs.granular.codecs import Codec
from fffs.granular.optional import library


def _unchanged(value: Any) -> Any:
    return value


def raw(codecs: Mapping[str, Codec | None] | None, kind: str, what: str) -> Codec:
    """Return the codec of a type; without codecs, or if it is None, one that returns bytes unchanged.

    what: begins the error. Raises UsageError if the type has none.
    """
    if codecs is None:
        return _unchanged
    try:
        return codecs[kind] or _unchanged
    except KeyError:
        raise UsageError(
            f"{what} for the type {kind!r} is missing; add one, or None for values that are bytes"
        ) from None


def path_of(path: Any) -> str:
    """Return a path or URL as text. Objects that are no ``os.PathLike``, such as paths of stores, are converted."""
    return os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else str(path)


def _mediapy() -> Any:
    return library("mediapy", "each of the types mp4 and webm")


def _encode_video(codec: str, value: Any) -> bytes:
    blob: bytes = _mediapy().compress_video(value, fps=20, codec=codec)
    return blob


def _decode_video(blob: bytes) -> Any:
    return np.asarray(_mediapy().decompress_video(blob))  # not its own kind of array


encoders: dict[str, Codec] = {
    **codecs.encoders,
    "mp4": functools.partial(_encode_video, "h264"),
    "webm": functools.partial(_encode_video, "vp9"),
}
decoders: dict[str, Codec] = {**codecs.decoders, "mp4": _decode_video, "webm": _decode_video}
