"""TFRecord files: decodes and encodes records, reads and writes files in sequence, finds shards, makes index files.

The messages are ``tf.train.Example`` and ``tf.train.SequenceExample``. TensorFlow and protobuf are not needed.

Examples:
    >>> try:
    ...     fffs.tfrecord.decode(b"not a message")
    ... except fffs.tfrecord.MessageError as error:
    ...     print(error)
    unsupported wire type (at byte 0 of the message)

"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fffs.base.paths import PathLike
from fffs.formats.features import (
    EXAMPLE,
    Decoded,
    Features,
    decode_features,
    encode_entry,
    encode_feature,
    encode_features,
    encode_name,
    items_of,
)
from fffs.formats.frames import FrameError
from fffs.formats.part_names import expand_shards, shard_name
from fffs.formats.protobuf import MessageError, as_bytes, encode_bytes
from fffs.formats.tfrecord import TFRecordWriter
from fffs.formats.tfrecord_index import check_index_file, export_index
from fffs.formats.tfrecord_stream import LARGEST, TFRecordStream
from fffs.native import lib

__all__ = [
    "FrameError",
    "MessageError",
    "TFRecordStream",
    "TFRecordWriter",
    "check_index_file",
    "decode",
    "decode_sequence",
    "encode",
    "encode_sequence",
    "expand_shards",
    "export_index",
    "read",
    "shard_name",
]


def read(path: PathLike, *, check_data: bool = True, max_record: int = LARGEST) -> TFRecordStream:
    """Read the records of a file in sequence. The file may be compressed with GZIP or ZLIB.

    Args:
        path: the file; its content determines how it is decompressed.
        check_data: compare the checksums of data; those of lengths are always compared.
        max_record: limit in bytes for a record, because a few compressed bytes can become very many.

    Returns:
        An iterator over ``bytes`` that is also a context manager. After a ChecksumError it continues with the next
        record.

    Raises:
        SourceNotFoundError, UsageError, ReadError: the file cannot be opened.

    Examples:
        >>> with fffs.tfrecord.read("train.tfrecord") as records:
        ...     [fffs.tfrecord.decode(record)["label"].tolist() for record in records]
        [[0], [1], [2]]

    """
    return TFRecordStream(path, check_data=check_data, max_record=max_record)


def decode(message: Any) -> Features:
    """Decode a ``tf.train.Example``.

    Args:
        message: its bytes, in any buffer.

    Returns:
        Name -> list of ``bytes``, float32 array or int64 array (writable, 1-D), or None for a feature without a kind.

    Raises:
        MessageError: the message is damaged, or is a SequenceExample (use ``decode_sequence``).

    Examples:
        >>> fffs.tfrecord.decode(fffs.tfrecord.encode({"name": "a", "label": [1, 2]}))
        {'name': [b'a'], 'label': array([1, 2])}

    """
    features, is_sequence = decode_features(as_bytes(message), lib.FFFS_SCHEMA_EXAMPLE, EXAMPLE)
    if is_sequence:
        raise MessageError("this is a SequenceExample; use decode_sequence")
    return features


def encode(features: Mapping[str, Any]) -> bytes:
    """Encode a ``tf.train.Example``, with the features in the order of the mapping.

    Example: ``fffs.tfrecord.decode``.

    Args:
        features: name -> bytes or str or a list of them; a number, a list of numbers or a 1-D array of them (integers
            and booleans become an int64_list, floats a float_list, rounded to 32 bits); None for a feature without a
            kind. An empty list becomes a bytes_list, an empty array the list of its dtype.

    Raises:
        UsageError: a value cannot be encoded.

    """
    return encode_bytes(1, encode_features(features, EXAMPLE, {}, ordered=False))


def decode_sequence(message: Any) -> dict[str, Any]:
    """Decode a ``tf.train.SequenceExample``.

    Returns:
        {"context": as ``decode`` returns it, "feature_lists": name -> list of such values}.

    Raises:
        MessageError: the message is damaged.

    Examples:
        >>> message = fffs.tfrecord.encode_sequence({"name": "a"}, {"words": ["b", "c"]})
        >>> fffs.tfrecord.decode_sequence(message)
        {'context': {'name': [b'a']}, 'feature_lists': {'words': [[b'b'], [b'c']]}}

    """
    data = as_bytes(message)
    context, _ = decode_features(data, lib.FFFS_SCHEMA_EXAMPLE, EXAMPLE)
    lists = Decoded(data, lib.FFFS_SCHEMA_FEATURE_LISTS, EXAMPLE)
    return {"context": context, "feature_lists": dict(lists.entries())}


def encode_sequence(context: Mapping[str, Any], feature_lists: Mapping[str, Iterable[Any]]) -> bytes:
    """Encode a ``tf.train.SequenceExample``, with values as for ``encode``. Raises UsageError.

    Example: ``fffs.tfrecord.decode_sequence``.
    """
    lists = b"".join(
        encode_entry(
            encode_name(name),
            b"".join(
                encode_bytes(1, encode_feature(value, EXAMPLE, name))
                for value in items_of(values, f"feature list {name!r}")
            ),
        )
        for name, values in feature_lists.items()
    )
    return encode_bytes(1, encode_features(context, EXAMPLE, {}, ordered=False)) + encode_bytes(2, lists)
