"""A slow decoder of messages of names and lists, which follows protobuf's specification and does not use fffs."""

from __future__ import annotations

import struct
from typing import Any

EXAMPLE = {1: "bytes", 2: "<f", 3: "<q"}
OFRECORD = {1: "bytes", 2: "<f", 3: "<d", 4: "<i", 5: "<q"}


class BadMessageError(Exception):
    """The message is invalid by the specification."""


def varint(data: bytes) -> tuple[int, bytes]:
    """Return the first number of data, and the rest."""
    for length in range(1, 11):
        if length > len(data):
            raise BadMessageError("cut")
        if data[length - 1] < 128:
            bits = "".join(f"{byte & 127:07b}" for byte in reversed(data[:length]))
            return int(bits, 2) % 2**64, data[length:]
    raise BadMessageError("eleven bytes")


def fields(data: bytes) -> list[tuple[int, int, Any]]:
    """Return (number, wire type, value) of each field."""
    found = []
    while data:
        tag, data = varint(data)
        number, wire = tag >> 3, tag & 7
        value: Any
        if wire == 0:
            value, data = varint(data)
        elif wire in (1, 5, 2):
            size = {1: 8, 5: 4}.get(wire)
            if size is None:
                size, data = varint(data)
            if size > len(data):
                raise BadMessageError("past the end")
            value, data = data[:size], data[size:]
        else:
            raise BadMessageError("wire type")
        if not 0 < number < 2**29:
            raise BadMessageError("number")
        found.append((number, wire, value))
    return found


def merged(data: bytes, number: int) -> bytes:
    """Return all submessages of that number, merged: complete ones are merged by joining them."""
    pieces = [value for n, wire, value in fields(data) if (n, wire) == (number, 2)]
    for piece in pieces:
        fields(piece)
    return b"".join(pieces)


def mapping(data: bytes) -> list[tuple[str, bytes]]:
    """Return the entries of the map in field 1."""
    entries = []
    for n, wire, value in fields(data):
        if (n, wire) == (1, 2):
            try:
                name = [b"", *(v for n, w, v in fields(value) if (n, w) == (1, 2))][-1].decode()
            except UnicodeDecodeError:
                raise BadMessageError("name") from None
            entries.append((name, merged(value, 2)))
    return entries


def numbers(data: bytes, code: str) -> list[Any]:
    """Return the numbers of a list, packed or not."""
    wire_of_one = {"<f": 5, "<d": 1}.get(code, 0)
    found = []
    for n, wire, value in fields(data):
        if n != 1 or wire not in (2, wire_of_one):
            continue
        if wire == 0:
            found.append(value)
        elif code in ("<f", "<d"):
            if len(value) % struct.calcsize(code):
                raise BadMessageError("cut number")
            found += [piece for (piece,) in struct.iter_unpack(f"{struct.calcsize(code)}s", value)]
        else:
            while value:
                number, value = varint(value)
                found.append(number)
    if wire_of_one == 0:
        width = struct.calcsize(code)
        return [(number % 2 ** (8 * width)).to_bytes(width, "little") for number in found]
    return found


def feature(data: bytes, kinds: dict[int, str]) -> Any:
    """Return (kind, its items as bytes), or None."""
    current, content = 0, b""
    for n, wire, value in fields(data):
        if wire == 2 and n in kinds:
            if n != current:
                checked(content, current, kinds)
                current, content = n, b""
            content += value
            fields(value)  # each piece must be a message of its own
    return checked(content, current, kinds)


def checked(content: bytes, number: int, kinds: dict[int, str]) -> Any:
    """Return the items of a list as bytes."""
    if not number:
        return None
    if kinds[number] == "bytes":
        return "bytes", [value for n, wire, value in fields(content) if (n, wire) == (1, 2)]
    return kinds[number], numbers(content, kinds[number])


def features(data: bytes, kinds: dict[int, str]) -> dict[str, Any]:
    return {name: feature(value, kinds) for name, value in mapping(data)}


def example(data: bytes) -> dict[str, Any]:
    return features(merged(data, 1), EXAMPLE)


def sequence(data: bytes) -> dict[str, Any]:
    lists = {
        name: [feature(value, EXAMPLE) for n, wire, value in fields(items) if (n, wire) == (1, 2)]
        for name, items in mapping(merged(data, 2))
    }
    return {"context": example(data), "feature_lists": lists}


def ofrecord(data: bytes) -> dict[str, Any]:
    return features(data, OFRECORD)


# ---------------------------------------------------------------- results of fffs, in the same form

CODES = {"float32": "<f", "float64": "<d", "int32": "<i", "int64": "<q"}


def plain(value: Any) -> Any:
    """Return a decoded list, or a dictionary of them, in the form above."""
    if value is None:
        return None
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value] if value and not isinstance(value[0], bytes) else ("bytes", value)
    width = value.itemsize
    data = value.tobytes()
    return CODES[value.dtype.name], [data[k : k + width] for k in range(0, len(data), width)]


def plain_sequence(value: dict[str, Any]) -> dict[str, Any]:
    """Return a decoded SequenceExample in the form above: lists of lists may be empty in it."""
    lists = {name: [plain(item) for item in items] for name, items in value["feature_lists"].items()}
    return {"context": plain(value["context"]), "feature_lists": lists}
