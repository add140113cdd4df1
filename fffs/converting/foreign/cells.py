"""Cells: the values of columns of Arrow as bytes: those of binary columns and texts as they are, others as JSON."""

from __future__ import annotations

import datetime
import json
import re
import zoneinfo
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

import numpy as np

from fffs.converting.foreign.items import Bytes
from fffs.granular.optional import library

Fail = Callable[[str], Exception]

_OFFSET: Final = re.compile(r"([+-])([01]\d|2[0-3]):?([0-5]\d)")

_PLAIN: Final = (
    "is_binary",
    "is_large_binary",
    "is_binary_view",
    "is_fixed_size_binary",
    "is_string",
    "is_large_string",
    "is_string_view",
)


def holds_bytes(kind: Any) -> bool:
    """Return whether the cells of a type are bytes or text, or a file of Hugging Face's data sets."""
    types = _types()
    if types.is_dictionary(kind):
        kind = kind.value_type
    return any(getattr(types, name)(kind) for name in _PLAIN) or is_embedded_file(kind)


def stored(kind: Any) -> Any:
    """Return the type of the bytes or texts that cells of an extension type are, such as JSON or a UUID; or the type.

    Which types a file has depends on the release of pyarrow: to older ones, JSON in Parquet is a text.
    """
    storage = getattr(kind, "storage_type", None)
    return storage if storage is not None and holds_bytes(storage) else kind


def is_embedded_file(kind: Any) -> bool:
    """Return whether a type is that of images and sounds of Hugging Face: a struct of ``bytes`` and ``path``."""
    if not _types().is_struct(kind):
        return False
    fields = {field.name: field.type for field in (kind.field(k) for k in range(kind.num_fields))}
    return fields.keys() == {"bytes", "path"} and _is_plain_binary(fields["bytes"])


def has_nested_bytes(kind: Any) -> bool:
    """Return whether bytes are somewhere in a nested type, so that JSON cannot hold its cells."""
    return _is_within(kind, _is_plain_binary)


def _is_within(kind: Any, is_one: Callable[[Any], bool]) -> bool:
    """Return whether a type, or one that is nested in it, is one. A UUID is a text where it is nested."""
    storage = getattr(kind, "storage_type", None)  # of an extension type
    if storage is not None:
        return kind.extension_name != "arrow.uuid" and _is_within(storage, is_one)
    return is_one(kind) or any(_is_within(kind.field(k).type, is_one) for k in range(getattr(kind, "num_fields", 0)))


def _is_plain_binary(kind: Any) -> bool:
    types = _types()
    if types.is_dictionary(kind):
        kind = kind.value_type
    return any(getattr(types, name)(kind) for name in _PLAIN[:4])


def cells_of(array: Any, fail: Fail) -> Iterator[Bytes | None]:
    """Yield the bytes of each cell of an array, or None for a null. They are valid as long as the array.

    Raises what fail returns for a text: a cell that refers to a file elsewhere.
    """
    if stored(array.type) != array.type:
        array = array.storage
    convert = _converter(array.type, fail)
    cells = array
    if _types().is_dictionary(array.type):  # whose values may be null, too
        values = array.dictionary
        cells = (values[k.as_py()] if k.is_valid else k for k in array.indices)
    return (convert(cell) if cell.is_valid else None for cell in cells)


def _converter(kind: Any, fail: Fail) -> Callable[[Any], Bytes | None]:
    """Return what makes the bytes of a cell that is not null, of a type or a dictionary of its values."""
    types = _types()
    if types.is_dictionary(kind):
        kind = kind.value_type
    if is_embedded_file(kind):
        return lambda cell: _embedded(cell, fail)
    if holds_bytes(kind):
        return lambda cell: memoryview(cell.as_buffer())
    if _is_within(kind, _is_nanoseconds):  # without pandas, pyarrow makes no objects of Python of them
        return lambda cell: _json(_value(cell))
    return lambda cell: _json(_object(cell))


def _object(cell: Any) -> Any:
    try:
        return cell.as_py()
    except (OverflowError, ValueError):  # because of a value within it, perhaps
        return _value(cell)


def _is_nanoseconds(kind: Any) -> bool:
    types = _types()
    return bool((types.is_time(kind) or types.is_timestamp(kind) or types.is_duration(kind)) and kind.unit == "ns")


def _value(cell: Any) -> Any:
    """Return a cell as Python's object, with times of nanoseconds as text."""
    types = _types()
    if not cell.is_valid:
        return None
    if _is_nanoseconds(cell.type):
        if types.is_duration(cell.type):
            return _duration(cell.value)
        zone = getattr(cell.type, "tz", None)
        return _zoned(cell.value, zone) if zone else cell.cast("string").as_py()
    if types.is_struct(cell.type):
        if len({field.name for field in cell.type}) < cell.type.num_fields:
            raise ValueError("a struct has several fields of one name")
        return {name: _value(field) for name, field in cell.items()}
    if types.is_map(cell.type):
        return [[_value(part) for part in pair.values()] for pair in cell.values]
    if types.is_nested(cell.type) and hasattr(cell, "values") and cell.values is not None:
        return [_value(item) for item in cell.values]
    try:
        return cell.as_py()
    except (OverflowError, ValueError):
        if not (types.is_timestamp(cell.type) or types.is_date(cell.type)):
            raise
        return _beyond(cell)


def _beyond(cell: Any) -> str:
    """Return a time of a year that Python does not have, as those that databases use as infinity: in Arrow's words."""
    if not getattr(cell.type, "tz", None):
        return str(cell.cast("string"))
    _zone(cell.type.tz)  # so that a pack does not depend on the zones that this machine has
    # With a time zone, Arrow writes another year than 40000, for example.
    text = str(cell.cast(library("pyarrow", "reading tables").timestamp(cell.type.unit)).cast("string"))
    return text if text.startswith("<") else f"{text}+00:00"


def _zoned(nanoseconds: int, zone: str) -> str:
    """Return a time with its zone, in Arrow's form.

    Arrow itself needs the system's zones for that, which containers may lack, even for UTC; before release 22, it
    refuses offsets; and behind 2037, it ignores summer time.
    """
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    time = datetime.datetime.fromtimestamp(seconds, _zone(zone))
    return f"{time:%Y-%m-%d %H:%M:%S}.{rest:09}{'Z' if zone == 'UTC' else f'{time:%z}'}"


@cache
def _zone(name: str) -> datetime.tzinfo:
    offset = _OFFSET.fullmatch(name)
    if offset:
        ahead = datetime.timedelta(hours=int(offset[2]), minutes=int(offset[3]))
        return datetime.timezone(-ahead if offset[1] == "-" else ahead)
    try:
        return datetime.timezone.utc if name == "UTC" else zoneinfo.ZoneInfo(name)
    except zoneinfo.ZoneInfoNotFoundError:
        raise ValueError(f"there is no time zone {name!r} here; pip install tzdata") from None


def _duration(nanoseconds: int) -> str:
    """Return a duration as ``str`` of ``timedelta`` has it, with the nanoseconds."""
    microseconds, rest = divmod(nanoseconds, 1000)
    text = str(datetime.timedelta(microseconds=microseconds))
    return f"{text}{'' if '.' in text else '.000000'}{rest:03}" if rest else text


def _embedded(cell: Any, fail: Fail) -> Bytes | None:
    data = cell["bytes"]
    if data.is_valid and _types().is_dictionary(data.type):
        data = data.value
    if data.is_valid:
        return memoryview(data.as_buffer())
    if cell["path"].is_valid:
        raise fail(f"refers to a file elsewhere ({cell['path'].as_py()!a:.200}); embed the files in it first")
    return None


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, default=_text).encode("utf-8", "surrogateescape")


def _text(value: Any) -> float | str:
    """Return what JSON has for an object."""
    # Before release 21 of pyarrow, numbers of 16 bits are objects of numpy.
    return float(value) if isinstance(value, np.floating) else str(value)


def _types() -> Any:
    return library("pyarrow.types", "reading tables")
