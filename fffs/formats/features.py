"""Decodes and encodes the messages in TFRecord and OFRecord files, which map names to lists of bytes or numbers.

Both formats have a ``map<string, Feature>``. A Feature is one of several kinds of lists, and only the kinds differ. In
Python it is a list of ``bytes`` or a numpy array of the kind's dtype; a Feature without a kind is None.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from fffs.base.buffers import refuse_addresses
from fffs.base.exact import exact_array
from fffs.errors import UsageError
from fffs.formats.protobuf import MessageError, encode_bytes
from fffs.native import ffi, lib

Value = list[bytes] | npt.NDArray[Any] | None
Features = dict[str, Value]


@dataclass(frozen=True)
class ListKind:
    """A kind of list: its name and its field number in Feature, and the dtype of its numbers (None: bytes)."""

    name: str
    number: int
    dtype: np.dtype[Any] | None = None


BYTES_LIST: Final = "bytes_list"
FLOAT32, FLOAT64 = np.dtype("<f4"), np.dtype("<f8")
INT32, INT64 = np.dtype("<i4"), np.dtype("<i8")

EXAMPLE: Final = (ListKind(BYTES_LIST, 1), ListKind("float_list", 2, FLOAT32), ListKind("int64_list", 3, INT64))
"""The kinds of tf.train.Feature, by number."""

OFRECORD: Final = (
    ListKind(BYTES_LIST, 1),
    ListKind("float_list", 2, FLOAT32),
    ListKind("double_list", 3, FLOAT64),
    ListKind("int32_list", 4, INT32),
    ListKind("int64_list", 5, INT64),
)
"""The kinds of OneFlow's Feature, by number."""


@dataclass(frozen=True)
class Schema:
    """The type of the messages in the records of a format, ``FFFS_SCHEMA_*``, and the kinds of their features."""

    message: int
    kinds: tuple[ListKind, ...]


EXAMPLE_SCHEMA: Final = Schema(lib.FFFS_SCHEMA_EXAMPLE, EXAMPLE)
OFRECORD_SCHEMA: Final = Schema(lib.FFFS_SCHEMA_OFRECORD, OFRECORD)

# ---------------------------------------------------------------- decoding

STEP: Final = 1 << 12  # entries that are converted to Python numbers at a time: hostile messages may have very many


class Decoded:
    """The map of a message, decoded by C into a table: the positions of names and items, and the numbers."""

    def __init__(self, data: bytes, schema: int, kinds: tuple[ListKind, ...]) -> None:
        """schema: ``FFFS_SCHEMA_*``. Raises MessageError."""
        out, why, where = ffi.new("fffs_features *"), ffi.new("char **"), ffi.new("uint64_t *")
        if lib.fffs_features_decode(data, len(data), schema, ffi.NULL, out, why, where) != 0:
            raise MessageError(ffi.string(why[0]).decode(), where[0])
        n, m, items = out.entries, out.features, out.items
        self.sequence = bool(out.sequence)
        self._data, self._kinds = data, kinds
        # Each value takes at most 8 bytes, and each list begins at a multiple of 8.
        self._tables = np.empty(4 * n + 3 * m + 2 * items + (out.values_size + 7) // 8, np.uint64)
        tables = ffi.cast("uint64_t *", self._tables.ctypes.data)
        if lib.fffs_features_decode(data, len(data), schema, tables, out, why, where) != 0:  # pragma: no cover
            raise MessageError(ffi.string(why[0]).decode(), where[0])
        self._entries = self._tables[: 4 * n].reshape(n, 4)
        self._features = self._tables[4 * n : 4 * n + 3 * m].reshape(m, 3)
        self._items = 4 * n + 3 * m
        self._values = 8 * (self._items + 2 * items)

    def entries(self) -> Iterator[tuple[str, list[Value]]]:
        """Yield (name, values) in the order of the message. Names may repeat. Raises MessageError: one is not UTF-8."""
        for k in range(0, len(self._entries), STEP):
            for begin, end, first, count in self._entries[k : k + STEP].tolist():
                try:
                    name = self._data[begin:end].decode()
                except UnicodeDecodeError:
                    raise MessageError("a name is not UTF-8", begin) from None
                rows = self._features[first : first + count].tolist()
                yield name, [self._value(*row) for row in rows]

    def _value(self, kind: int, first: int, count: int) -> Value:
        if kind == 0:
            return None
        dtype = self._kinds[kind - 1].dtype
        if dtype is None:
            at = self._items + 2 * first
            words = self._tables[at : at + 2 * count].tolist()
            return [self._data[a:b] for a, b in zip(words[::2], words[1::2], strict=True)]
        if count == 0:
            return np.empty(0, dtype)
        return np.frombuffer(self._tables, dtype, count, self._values + first).copy()


def decode_features(data: bytes, schema: int, kinds: tuple[ListKind, ...]) -> tuple[Features, bool]:
    """Return the map of a message, with the last entry of a repeated name, and whether the message has feature lists.

    Raises MessageError.
    """
    decoded = Decoded(data, schema, kinds)
    return {name: values[0] for name, values in decoded.entries()}, decoded.sequence


# ---------------------------------------------------------------- encoding


def encode_features(
    features: Mapping[str, Any], kinds: tuple[ListKind, ...], chosen: Mapping[str, str], *, ordered: bool
) -> bytes:
    """Return a message whose field 1 is the map. Raises UsageError if a name or a value cannot be encoded.

    chosen: name -> kind. ordered: sort the entries by the UTF-8 bytes of their names.
    """
    for name in chosen:
        if name not in features:
            raise UsageError(f"kinds has {name!r}, but there is no such feature")
    entries = [
        (key, encode_feature(value, kinds, name, chosen.get(name)))
        for name, value in features.items()
        for key in (encode_name(name),)
    ]
    if ordered:
        entries.sort()
    return b"".join(encode_entry(key, value) for key, value in entries)


def encode_entry(name: bytes, value: bytes) -> bytes:
    """Return field 1 with one entry of the map."""
    return encode_bytes(1, encode_bytes(1, name), encode_bytes(2, value))


def encode_name(name: str) -> bytes:
    """Return a name in UTF-8. Raises UsageError."""
    if not isinstance(name, str):
        raise UsageError(f"the name of a feature must be a str, not {type(name).__name__}")
    try:
        return name.encode()
    except UnicodeEncodeError:
        raise UsageError(f"the name {name!r} of a feature cannot be encoded in UTF-8") from None


def encode_feature(value: Any, kinds: tuple[ListKind, ...], name: str, chosen: str | None = None) -> bytes:
    """Return one Feature. ``chosen`` is its kind; without it, the type of the value determines the kind."""
    where = f"feature {name!r}"
    if value is None:
        return b""
    if isinstance(value, (bytes, bytearray, memoryview, str)):
        value = [value]
    elif hasattr(value, "__array__"):  # also a tensor or a numpy scalar
        value = _as_array(value, where)
    # An empty list has no type. It becomes a list of bytes, which is also decoded to an empty list.
    is_bytes = not isinstance(value, np.ndarray) and (
        (hasattr(value, "__len__") and len(value) == 0)
        or (isinstance(value, (list, tuple)) and isinstance(value[0], (bytes, bytearray, memoryview, str)))
    )
    if chosen is None:
        if not is_bytes:
            value = _as_array(value, where)
        kind = kinds[0] if is_bytes else _kind_of(value, kinds, where)
    else:
        kind = next((kind for kind in kinds if kind.name == chosen), kinds[0])
        if kind.name != chosen:
            raise UsageError(f"{where}: there is no kind {chosen!r}; there are {', '.join(k.name for k in kinds)}")
    if kind.dtype is None:
        return encode_bytes(kind.number, *(encode_bytes(1, _as_bytes(item, where)) for item in items_of(value, where)))
    numbers = _convert(_as_array(value, where), kind.dtype, where)
    if not len(numbers):
        return encode_bytes(kind.number)
    packed = _encode_varints(numbers) if kind.dtype.kind == "i" else numbers.tobytes()
    return encode_bytes(kind.number, encode_bytes(1, packed))


def items_of(value: Any, where: str) -> Iterator[Any]:
    """Iterate over a list of values. Raises UsageError if it is none."""
    try:
        return iter(value)
    except TypeError:
        raise UsageError(f"{where}: a list is needed, not {type(value).__name__}") from None


def _as_bytes(item: Any, where: str) -> bytes:
    if isinstance(item, str):
        try:
            return item.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{where}: {item!r} cannot be encoded in UTF-8") from None
    if isinstance(item, (bytes, bytearray, memoryview)):
        try:
            refuse_addresses(item)
        except TypeError as error:
            raise UsageError(f"{where}: {error}") from None
        return bytes(item)
    raise UsageError(f"{where}: a list of bytes can only contain bytes or str, not {type(item).__name__}")


def _as_array(value: Any, where: str) -> npt.NDArray[Any]:
    try:
        array = exact_array(value)
    except (ValueError, OverflowError, TypeError, RuntimeError) as error:  # RuntimeError: of torch
        raise UsageError(f"{where}: not a list of numbers or bytes ({error})") from None
    if array.ndim > 1:
        raise UsageError(f"{where}: an array of {array.ndim} dimensions; flatten it, and store its shape separately")
    if array.dtype.kind not in "biuf":
        raise UsageError(f"{where}: must be numbers or bytes, not {array.dtype}")
    return array.reshape(-1)


def _kind_of(array: npt.NDArray[Any], kinds: tuple[ListKind, ...], where: str) -> ListKind:
    """Return the narrowest kind that holds all numbers of the array's dtype, or else the widest of its family."""
    family = "f" if array.dtype.kind == "f" else "i"
    fitting = [kind for kind in kinds if kind.dtype is not None and kind.dtype.kind == family]
    for kind in fitting:
        assert kind.dtype is not None
        if np.can_cast(array.dtype, kind.dtype):
            return kind
    return fitting[-1]


def _convert(array: npt.NDArray[Any], dtype: np.dtype[Any], where: str) -> npt.NDArray[Any]:
    """Convert numbers to another dtype. Raises UsageError if one changes by more than the rounding of a float."""
    if array.dtype == dtype or not len(array):
        return array.astype(dtype)
    if dtype.kind == "i":
        limits = np.iinfo(dtype)
        if array.dtype.kind == "f" or (
            len(array) and not (limits.min <= int(array.min()) and int(array.max()) <= limits.max)
        ):
            raise UsageError(f"{where}: not all numbers fit in {dtype.name}")
        return array.astype(dtype)
    with np.errstate(over="ignore"):
        converted = array.astype(dtype)
    if np.isinf(converted).sum() != (np.isinf(array).sum() if array.dtype.kind == "f" else 0):
        raise UsageError(f"{where}: a number is too large for {dtype.name}")
    return converted


def _encode_varints(numbers: npt.NDArray[Any]) -> bytes:
    values = np.ascontiguousarray(numbers, np.int64)
    room = np.empty(10 * len(values), np.uint8)
    size = lib.fffs_varints_encode(
        ffi.cast("int64_t *", values.ctypes.data), len(values), ffi.cast("uint8_t *", room.ctypes.data)
    )
    return room[:size].tobytes()
