"""The supplied codecs, which convert values to the bytes of a blob and back as the versions of granular do.

``encoders`` and ``decoders`` have the types of all versions. One type has two meanings: ``int`` without a size is
signed since 0.8; ``encoders_0_6`` and ``decoders_0_6`` take it as unsigned, as 0.6.0 did. A codec is called with the
value or blob, and with the arguments of the type as strings, such as ``"8"`` for ``int(8)``. To add a codec::

    decoders = fffs.granular.decoders | {"mp4": my_decoder}

An encoder raises UsageError for values that its decoder would not return equal. A decoder raises ValueError if a blob
is not of its type; readers add which blob it was.
"""

from __future__ import annotations

import functools
import io
import math
import operator
import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from fffs.base.buffers import refuse_addresses
from fffs.base.exact import exact_array
from fffs.errors import UsageError
from fffs.granular.bounded_msgpack import pack, unpack
from fffs.granular.optional import library

Codec = Callable[..., Any]

LARGEST_IMAGE = 1 << 30
"""The most bytes of pixels that decoding an image may allocate."""

# "a" is a deprecated alias of "S", for which numpy warns.
_DTYPE = re.compile(r"[<>=|]?(?!a[0-9]*\Z)[a-zA-Z]+[0-9]*(\[([1-9][0-9]*)?[a-zA-Z]+\])?")
_LAST_CHARACTER = 0x10FFFF


def _refusing(kind: str) -> Callable[[Callable[..., bytes]], Callable[..., bytes]]:
    """Decorate an encoder of a type, so that its errors for other values become UsageErrors."""

    def wrap(encode: Callable[..., bytes]) -> Callable[..., bytes]:
        @functools.wraps(encode)
        def refuse(value: Any, *arguments: Any) -> bytes:
            try:
                return encode(value, *arguments)
            except UsageError:
                raise
            except (ValueError, TypeError, AttributeError, OverflowError, RuntimeError, OSError) as error:  # of torch
                why = str(error)[:300] or type(error).__name__
                raise UsageError(f"this {type(value).__name__} cannot be encoded as type {kind}: {why}") from error

        return refuse

    return wrap


# ---------------------------------------------------------------- texts and numbers


@_refusing("bytes")
def encode_bytes(value: Any) -> bytes:
    """``bytes``: unchanged."""
    refuse_addresses(value)
    return bytes(memoryview(value))


def decode_bytes(blob: bytes) -> bytes:
    """``bytes``: unchanged."""
    return blob


@_refusing("utf8")
def encode_utf8(value: str) -> bytes:
    """``utf8``: text."""
    if not isinstance(value, str):
        raise TypeError("it must be a str")
    return value.encode()


def decode_utf8(blob: bytes) -> str:
    """``utf8``: text."""
    return blob.decode()


@_refusing("int")
def encode_int(value: int, size: str | None = None) -> bytes:
    """``int(size)``: unsigned, little-endian. ``int``: signed, in as few bytes as possible, at least one."""
    if size is not None:
        return encode_unsigned(value, size)
    value = operator.index(value)
    return value.to_bytes((value if value >= 0 else ~value).bit_length() // 8 + 1, "little", signed=True)


def decode_int(blob: bytes, size: str | None = None) -> int:
    """``int(size)``: unsigned, little-endian, of that size. ``int``: signed."""
    return int.from_bytes(blob, "little", signed=True) if size is None else decode_unsigned(blob, size)


@_refusing("int")
def encode_unsigned(value: int, size: str | None = None) -> bytes:
    """``int`` of 0.6.0: unsigned, little-endian, in as few bytes as possible; 0 has none."""
    value = operator.index(value)
    return value.to_bytes((value.bit_length() + 7) // 8 if size is None else int(size), "little")


def decode_unsigned(blob: bytes, size: str | None = None) -> int:
    """``int`` of 0.6.0: unsigned, little-endian."""
    if size is not None and len(blob) != int(size):
        raise ValueError(f"an integer of {len(blob)} bytes, instead of {size}")
    return int.from_bytes(blob, "little")


def _fixed(kind: str, form: str) -> tuple[Codec, Codec]:
    packer = struct.Struct(form)

    @_refusing(kind)
    def encode(value: int) -> bytes:
        try:
            return packer.pack(value)
        except struct.error as error:
            raise ValueError(f"{value!r:.60}: {error}") from None

    # Not a closure, which cannot be passed to workers that are not forked.
    return encode, functools.partial(_decode_fixed, form)


def _decode_fixed(form: str, blob: bytes) -> int:
    if len(blob) != struct.calcsize(form):
        raise ValueError(f"an integer of {len(blob)} bytes, instead of {struct.calcsize(form)}")
    return int(struct.unpack(form, blob)[0])


encode_i64, decode_i64 = _fixed("i64", "<q")
encode_u64, decode_u64 = _fixed("u64", "<Q")

# ---------------------------------------------------------------- arrays


def as_array(name: Any, shape: Any, data: Any) -> np.ndarray:
    """Return bytes as a new array. Raises ValueError unless dtype and shape are valid and fit the bytes."""
    if not isinstance(name, str) or not isinstance(data, bytes) or not isinstance(shape, (list, tuple)):
        raise ValueError("not an array: it needs a dtype, a shape and bytes")
    if not all(type(length) is int and length >= 0 for length in shape) or len(shape) > 32:
        raise ValueError(f"an array of shape {shape!r:.60}")
    dtype = _dtype(name)
    if math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError(f"{len(data)} bytes for an array of {dtype} and shape {shape!r:.60}")
    if not data:
        return np.empty(shape, dtype)
    if dtype.kind == "U" and np.frombuffer(data, np.dtype("u4").newbyteorder(dtype.byteorder)).max() > _LAST_CHARACTER:
        raise ValueError(f"an array of text with a character above U+{_LAST_CHARACTER:X}")
    # A copy: torch makes writable tensors also of read-only arrays, and CPython shares bytes objects of length 1.
    return np.frombuffer(data, dtype).reshape(shape).copy()


def _dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of a name. Raises ValueError if its arrays cannot be stored as their bytes."""
    try:
        dtype = np.dtype(name) if _DTYPE.fullmatch(name) else None
    except (TypeError, ValueError):
        dtype = None
    if dtype is None or dtype.hasobject or dtype.itemsize == 0:
        raise ValueError(f"an array of unsupported dtype {name!r:.60}")
    return dtype


def _parts(array: np.ndarray) -> tuple[str, tuple[int, ...], bytes]:
    """Return the arguments for ``as_array`` that give the same array. Raises ValueError if that is impossible."""
    if array.dtype.hasobject:
        raise ValueError("an array of objects holds addresses, not contents")
    if array.dtype.names is not None:
        raise ValueError(f"an array of {array.dtype}: its field names would be lost; write each field as an array")
    parts = array.dtype.str, array.shape, array.tobytes()
    if as_array(*parts).dtype != array.dtype:
        raise ValueError(f"an array of {array.dtype} would be read as one of {parts[0]}")
    return parts


@_refusing("array")
def encode_array(value: Any, *arguments: str) -> bytes:
    """``array(dtype,dims...)``: the bytes of an array. ``array``: with its dtype and shape (needs msgpack)."""
    array = exact_array(value)
    parts = _parts(array)
    if not arguments:
        return pack(parts)
    dtype, shape = _dtype(arguments[0]), tuple(int(length) for length in arguments[1:])
    if array.dtype != dtype or array.shape != shape:
        raise ValueError(f"an array of {array.dtype} and shape {array.shape}, instead of {dtype} and {shape}")
    return parts[2]


def decode_array(blob: bytes, *arguments: str) -> np.ndarray:
    """``array(dtype,dims...)``: raw bytes. ``array``: with its dtype and shape (needs msgpack)."""
    if arguments:
        return as_array(arguments[0], [int(length) for length in arguments[1:]], blob)
    parts = unpack(blob)
    if not isinstance(parts, list) or len(parts) != 3:
        raise ValueError("not an array: it needs a dtype, a shape and bytes")
    return as_array(*parts)


# ---------------------------------------------------------------- structures


def _readable(blob: bytes, list_hook: Callable[[list[Any]], Any] | None = None) -> bytes:
    """Return the blob. Raises ValueError if it cannot be read: msgpack packs numbers as keys, but rejects them."""
    try:
        unpack(blob, list_hook)
    except ValueError as error:
        raise ValueError(f"it could not be read back: {error}") from None
    return blob


@_refusing("msgpack")
def encode_msgpack(value: Any) -> bytes:
    """``msgpack``: a structure of lists, dictionaries, numbers, strings and bytes."""
    return _readable(pack(value))


def decode_msgpack(blob: bytes) -> Any:
    """``msgpack``: a structure of lists, dictionaries, numbers, strings and bytes."""
    return unpack(blob)


def _extract(items: list[Any]) -> Any:
    """Return the array that a list represents, or the list itself."""
    if len(items) != 4 or not isinstance(items[0], str) or items[0] != "_":
        return items
    if not (isinstance(items[1], str) and isinstance(items[2], list) and isinstance(items[3], bytes)):
        return items
    return as_array(*items[1:])


@_refusing("tree")
def encode_tree(value: Any) -> bytes:
    """``tree``: as ``msgpack``, but may hold arrays, each as ``["_", dtype, shape, bytes]``."""
    embedded = 0

    def embed(item: Any) -> Any:
        nonlocal embedded
        if not isinstance(item, np.ndarray):
            raise TypeError(f"a tree cannot hold {type(item).__name__}")
        embedded += 1
        return ["_", *_parts(exact_array(item))]

    def extract(items: list[Any]) -> Any:
        nonlocal embedded
        found = _extract(items)
        embedded -= found is not items
        return found

    blob = _readable(pack(value, embed), extract)
    if embedded:
        raise ValueError("it has a list that would be read back as an array")
    return blob


def decode_tree(blob: bytes) -> Any:
    """``tree``: as ``msgpack``, but may hold arrays."""
    return unpack(blob, _extract)


# ---------------------------------------------------------------- images


_FORMS: dict[str, tuple[set[tuple[str | int, ...]], str]] = {
    "JPEG": ({("uint8",), ("uint8", 3)}, "(height, width) or (height, width, 3) of uint8"),
    "PNG": (
        {("bool",), ("uint16",), ("uint8",), ("uint8", 2), ("uint8", 3), ("uint8", 4)},
        "(height, width) of uint8, uint16 or bool, or (height, width, 2 to 4) of uint8",
    ),
}
"""The arrays that an image can hold, by its name in Pillow: types, with the number of channels if there are three
dimensions, and the same in words.

Pillow, depending on its version, also writes other arrays: it clips integers to 16 bits, or makes a column of a row.
"""


def _refuse_others(kind: str, array: np.ndarray) -> None:
    """Raise ValueError for an array that would be read back as another one."""
    forms, words = _FORMS[kind]
    if array.ndim < 2 or (array.dtype.name, *array.shape[2:]) not in forms:
        raise ValueError(f"an array of shape {array.shape} of {array.dtype}, instead of {words}")
    if not array.size:
        raise ValueError(f"an array of shape {array.shape} has no pixels")


def _image(kind: str) -> tuple[Codec, Codec]:
    """Make the codec of an image format. kind: its name in Pillow."""

    @_refusing(kind.lower())
    def encode(value: Any) -> bytes:
        array, out = exact_array(value), io.BytesIO()
        _refuse_others(kind, array)
        pillow = library("PIL.Image", f"the type {kind.lower()}")
        pillow.fromarray(array.astype(array.dtype.newbyteorder("="), copy=False)).save(out, format=kind)
        blob = out.getvalue()
        try:
            _open_image(kind, blob)
        except Exception as error:  # Pillow's error for too many pixels is no ValueError
            raise ValueError(f"it could not be read back: {error}") from None
        return blob

    return encode, functools.partial(_decode_image, kind)


def _decode_image(kind: str, blob: bytes) -> np.ndarray:
    pillow = library("PIL.Image", f"the type {kind.lower()}")
    try:
        # This compares the checksums of a PNG. A JPEG has none, so it does nothing.
        pillow.open(io.BytesIO(blob), formats=(kind,)).verify()
        # numpy.asarray would share the bytes object of an image of one pixel.
        pixels = np.array(_open_image(kind, blob))
        if pixels.dtype == np.bool_:  # Pillow has bytes of 255, where numpy and torch have 1
            pixels = pixels.view(np.uint8) != 0
        return pixels.astype(np.uint16) if pixels.dtype == np.int32 else pixels  # 16 bits, in Pillow 10.0
    except MemoryError:
        raise
    except Exception as error:  # Pillow's parsers raise nearly any exception
        raise ValueError(f"not a valid {kind}: {str(error)[:200]}") from None


def _open_image(kind: str, blob: bytes) -> Any:
    """Return an image of which only the header is read. Raises ValueError if it is too large, or as Pillow does."""
    image = library("PIL.Image", f"the type {kind.lower()}").open(io.BytesIO(blob), formats=(kind,))
    depth = len(image.getbands()) * (4 if image.mode[0] in "IF" else 1)
    if math.prod(image.size) * depth > LARGEST_IMAGE:
        raise ValueError(f"an image of {image.size[0]} by {image.size[1]} pixels is too large")
    return image


encode_jpeg, decode_jpeg = _image("JPEG")
encode_png, decode_png = _image("PNG")

# ---------------------------------------------------------------- by name

encoders: dict[str, Codec] = {
    "bytes": encode_bytes,
    "utf8": encode_utf8,
    "int": encode_int,
    "i64": encode_i64,
    "u64": encode_u64,
    "array": encode_array,
    "msgpack": encode_msgpack,
    "tree": encode_tree,
    "jpeg": encode_jpeg,
    "jpg": encode_jpeg,
    "png": encode_png,
}
"""Type -> function that makes a blob of a value, for all versions."""

decoders: dict[str, Codec] = {
    "bytes": decode_bytes,
    "utf8": decode_utf8,
    "int": decode_int,
    "i64": decode_i64,
    "u64": decode_u64,
    "array": decode_array,
    "msgpack": decode_msgpack,
    "tree": decode_tree,
    "jpeg": decode_jpeg,
    "jpg": decode_jpeg,
    "png": decode_png,
}
"""Type -> function that makes a value of a blob, for all versions."""

encoders_0_6: dict[str, Codec] = {**encoders, "int": encode_unsigned}
"""As ``encoders``, but an ``int`` without a size is unsigned, as in granular 0.6.0."""

decoders_0_6: dict[str, Codec] = {**decoders, "int": decode_unsigned}
"""As ``decoders``, but an ``int`` without a size is unsigned, as in granular 0.6.0."""
