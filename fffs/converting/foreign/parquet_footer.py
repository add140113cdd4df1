"""The footer of a Parquet file, changed so that Arrow reads times of INT96 as the bytes that they are.

Source of the format: parquet.thrift of apache/parquet-format, in the compact protocol of Apache Thrift.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from fffs.granular.optional import library

SIZE: Final = 12  # bytes of INT96
_MAGIC: Final = b"PAR1"

# Types of values in the compact protocol. 1 and 2 are true and false, which have no bytes; between these are numbers.
_BYTE, _I32, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 3, 5, 7, 8, 9, 10, 12
_STEP: Final = 16  # the head of a field has its type, and how far its number is from that of the field before

# Numbers of fields in parquet.thrift.
_SCHEMA, _ROW_GROUPS, _KEY_VALUES = 2, 4, 5  # of FileMetaData
_COLUMNS, _META_DATA = 1, 3  # of RowGroup, of ColumnChunk
_TYPE, _TYPE_LENGTH = 1, 2  # of SchemaElement; the first is also that of ColumnMetaData

# Values of the enumeration Type, as the protocol encodes signed numbers.
_INT96, _FIXED_LEN_BYTE_ARRAY = 3 << 1, 7 << 1


def with_int96_as_bytes(metadata: Any) -> Any:
    """Return pyarrow's metadata of a file with another type for INT96: bytes of a fixed length, which are stored alike.

    The types that Arrow noted for itself are left out. Raises what pyarrow raises.
    """
    given = io.BytesIO()
    metadata.write_metadata_file(given)  # by Arrow, so that nothing in it is damaged
    data = given.getvalue()
    (size,) = struct.unpack("<I", data[-8:-4])
    changed = _Footer(data[-8 - size : -8]).changed()
    file = b"".join([_MAGIC, changed, struct.pack("<I", len(changed)), _MAGIC])
    return library("pyarrow.parquet", "reading tables").read_metadata(io.BytesIO(file))


class _Footer:
    """A FileMetaData in the compact protocol. Methods get the place of a value, and return where it ends."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._edits: list[tuple[int, int, bytes]] = []  # from where to where is what instead

    def changed(self) -> bytes:
        """Return it with other types for INT96."""
        self._struct(0, {_SCHEMA: self._schema, _ROW_GROUPS: self._groups, _KEY_VALUES: self._key_values})
        pieces, at = [], 0
        for start, end, replacement in self._edits:
            pieces += [self._data[at:start], replacement]
            at = end
        return b"".join([*pieces, self._data[at:]])

    def _schema(self, at: int) -> int:
        return self._list(at, lambda at: self._struct(at, {_TYPE: self._type_of_element}))

    def _type_of_element(self, at: int) -> int:
        end = self._type(at)
        if self._data[at] != _INT96:
            return end
        following = self._data[end]
        length = bytes([(_TYPE_LENGTH - _TYPE) * _STEP | _I32, SIZE << 1])
        if following // _STEP == _TYPE_LENGTH - _TYPE:  # which means nothing for INT96
            self._edits.append((end, self._skip(end + 1, _I32), length))
        else:
            less = _STEP if following else 0  # at the end of the struct
            self._edits.append((end, end + 1, length + bytes([following - less])))
        return end

    def _groups(self, at: int) -> int:
        column = {_TYPE: self._type}
        chunk = {_META_DATA: lambda at: self._struct(at, column)}  # unless it is encrypted
        group = {_COLUMNS: lambda at: self._list(at, lambda at: self._struct(at, chunk))}
        return self._list(at, lambda at: self._struct(at, group))

    def _type(self, at: int) -> int:
        if self._data[at] == _INT96:
            self._edits.append((at, at + 1, bytes([_FIXED_LEN_BYTE_ARRAY])))
        return self._skip(at, _I32)

    def _key_values(self, at: int) -> int:
        end = self._skip(at, _LIST)
        self._edits.append((at, end, bytes([_STRUCT])))  # an empty list of these
        return end

    # ------------------------------------------------------------ the protocol

    def _struct(self, at: int, visit: Mapping[int, Callable[[int], int]]) -> int:
        """Call functions for some of the fields of a struct."""
        number = 0
        while head := self._data[at]:
            at += 1
            if head < _STEP:
                number, at = self._number(at)
                number >>= 1  # which is not negative
            else:
                number += head // _STEP
            at = visit[number](at) if number in visit else self._skip(at, head % _STEP)
        return at + 1

    def _list(self, at: int, visit: Callable[[int], int]) -> int:
        count, at = self._data[at] // _STEP, at + 1
        if count == 15:
            count, at = self._number(at)
        for _ in range(count):
            at = visit(at)
        return at

    def _number(self, at: int) -> tuple[int, int]:
        """Return a number of 7 bits in each byte, the lowest ones first, and where it ends."""
        number = shift = 0
        while (byte := self._data[at]) > 127:
            number |= (byte & 127) << shift
            shift += 7
            at += 1
        return number | byte << shift, at + 1

    def _skip(self, at: int, kind: int) -> int:
        if kind < _BYTE:
            return at
        if kind in (_BYTE, _DOUBLE):
            return at + (1 if kind == _BYTE else 8)
        if kind < _DOUBLE:
            while self._data[at] > 127:
                at += 1
            return at + 1
        if kind == _BINARY:
            size, at = self._number(at)
            return at + size
        if kind == _STRUCT:
            return self._struct(at, {})
        if kind not in (_LIST, _SET):
            raise ValueError(f"type {kind} in the footer")
        of = max(self._data[at] % _STEP, _BYTE)  # true and false have a byte here
        return self._list(at, lambda at: self._skip(at, of))
