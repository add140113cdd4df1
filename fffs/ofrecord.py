"""OFRecord files (OneFlow's): decodes and encodes records, writes files, finds parts. OneFlow is not needed.

Examples:
    >>> try:
    ...     fffs.ofrecord.decode(b"not a message")
    ... except fffs.ofrecord.MessageError as error:
    ...     print(error)
    unsupported wire type (at byte 0 of the message)

"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fffs.formats.features import OFRECORD, Features, decode_features, encode_features
from fffs.formats.frames import FrameError
from fffs.formats.ofrecord import OFRecordWriter
from fffs.formats.part_names import expand_parts
from fffs.formats.protobuf import MessageError, as_bytes
from fffs.native import lib

__all__ = ["FrameError", "MessageError", "OFRecordWriter", "decode", "encode", "expand_parts"]


def decode(message: Any) -> Features:
    """Decode an ``OFRecord``.

    Args:
        message: its bytes, in any buffer.

    Returns:
        Name -> list of ``bytes``, or an array of float32, float64, int32 or int64 (writable, 1-D), or None for a
        feature without a kind.

    Raises:
        MessageError: the message is damaged.

    Examples:
        >>> fffs.ofrecord.decode(fffs.ofrecord.encode({"label": 1, "name": "a"}))
        {'label': array([1]), 'name': [b'a']}

    """
    features, _ = decode_features(as_bytes(message), lib.FFFS_SCHEMA_OFRECORD, OFRECORD)
    return features


def encode(features: Mapping[str, Any], kinds: Mapping[str, str] | None = None) -> bytes:
    """Encode an ``OFRecord``, with the features sorted by the UTF-8 bytes of their names.

    Args:
        features: name -> bytes or str or a list of them; a number, a list of numbers or a 1-D array of them; None for a
            feature without a kind. An array becomes the narrowest kind that holds all numbers of its dtype. Python
            integers become an int64_list, Python floats a double_list, an empty list a bytes_list.
        kinds: name -> "bytes_list", "float_list", "double_list", "int32_list" or "int64_list", to choose another kind.

    Raises:
        UsageError: a value cannot be encoded, or not as that kind.

    Examples:
        >>> message = fffs.ofrecord.encode({"label": 1}, kinds={"label": "int32_list"})
        >>> fffs.ofrecord.decode(message)["label"].dtype
        dtype('int32')

    """
    return encode_features(features, OFRECORD, kinds or {}, ordered=True)
