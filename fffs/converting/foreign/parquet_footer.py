"""The footer of a Parquet file, changed so that Arrow reads times of INT96 as the bytes that they are.

Source of the format: parquet.thrift of apache/parquet-format, in the compact protocol of Apache Thrift.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final

from fffs.files.file import File
from fffs.formats.other_formats import PARQUET

SIZE: Final = 12  # bytes of INT96

_END: Final = struct.Struct("<I4s")  # the size of the footer, and the magic

# Types of values in the compact protocol. 1 and 2 are true and false, which have no bytes; between these are numbers.
_BYTE, _I32, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 3, 5, 7, 8, 9, 10, 11, 12
_STEP: Final = 16  # the head of a field has its type, and how far its number is from that of the field before

# Numbers and types of fields in parquet.thrift.
_SCHEMA, _ROW_GROUPS, _KEY_VALUES = (2, _LIST), (4, _LIST), (5, _LIST)  # of FileMetaData
_COLUMNS, _META_DATA = (1, _LIST), (3, _STRUCT)  # of RowGroup, of ColumnChunk
_TYPE: Final = (1, _I32)  # of SchemaElement, and of ColumnMetaData

# The value of the enumeration Type, as the protocol encodes signed numbers, and fields that replace it: with numbers of
# their own, at the end of a struct. There, they also win over others with the same numbers.
_INT96: Final = 3 << 1
_FIXED_LEN_BYTE_ARRAY: Final = bytes([_I32, 1 << 1, 7 << 1])
_TYPE_LENGTH: Final = bytes([_I32, 2 << 1, SIZE << 1])

_Visits = Mapping[tuple[int, int], Callable[[int], int]]


def with_int96_as_bytes(file: File) -> bytes:
    """Return a file with the footer of another one, which pyarrow understood, and nothing else. INT96 has another type
    there: bytes of a fixed length, which are stored alike. The types that Arrow noted for itself are left out.

    Raises ReadError, and ValueError, IndexError or RecursionError if the footer is damaged.
    """
    size, _ = _END.unpack(file.read_bytes(file.size - _END.size, _END.size))
    # Not as pyarrow's metadata writes it, which crashes for a footer that names an encryption.
    footer = _Footer(file.read_bytes(max(file.size - _END.size - size, 0), size)).changed()
    return PARQUET + footer + _END.pack(len(footer), PARQUET)


class _Footer:
    """A FileMetaData in the compact protocol. Methods get the place of a value, and return where it ends."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._edits: list[tuple[int, int, bytes]] = []  # from where to where is what instead
        self._is_int96 = False  # what the last struct with a type describes

    def changed(self) -> bytes:
        """Return it with other types for INT96."""
        self._struct(0, {_SCHEMA: self._schema, _ROW_GROUPS: self._groups, _KEY_VALUES: self._key_values})
        pieces, at = [], 0
        for start, end, replacement in self._edits:
            pieces += [self._data[at:start], replacement]
            at = end
        return b"".join([*pieces, self._data[at:]])

    def _schema(self, at: int) -> int:
        return self._list(at, lambda at: self._described(at, _FIXED_LEN_BYTE_ARRAY + _TYPE_LENGTH))

    def _groups(self, at: int) -> int:
        chunk = {_META_DATA: lambda at: self._described(at, _FIXED_LEN_BYTE_ARRAY)}  # unless it is encrypted
        group = {_COLUMNS: lambda at: self._list(at, lambda at: self._struct(at, chunk))}
        return self._list(at, lambda at: self._struct(at, group))

    def _described(self, at: int, replacement: bytes) -> int:
        """Pass a struct with the type of something, and replace that if it is INT96."""
        self._is_int96 = False
        end = self._struct(at, {_TYPE: self._type})
        if self._is_int96:
            self._edits.append((end - 1, end - 1, replacement))
        return end

    def _type(self, at: int) -> int:
        value, end = self._number(at)
        self._is_int96 = value == _INT96
        return end

    def _key_values(self, at: int) -> int:
        end = self._skip(at, _LIST)
        self._edits.append((at, end, bytes([_STRUCT])))  # an empty list of these
        return end

    # ------------------------------------------------------------ the protocol

    def _struct(self, at: int, visits: _Visits) -> int:
        """Call functions for some of the fields of a struct, by their numbers and types."""
        number = 0
        while head := self._data[at]:
            at += 1
            if head < _STEP:
                number, at = self._number(at)
                number >>= 1  # which is not negative
            else:
                number += head // _STEP
            field = number, head % _STEP
            at = visits[field](at) if field in visits else self._skip(at, head % _STEP)
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
            if shift > 63:
                raise ValueError("a number of more than 64 bits in the footer")
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
        if kind in (_LIST, _SET):
            of = max(self._data[at] % _STEP, _BYTE)  # true and false have a byte here
            return self._list(at, lambda at: self._skip(at, of))
        if kind == _MAP and not self._data[at]:
            return at + 1
        raise ValueError(f"type {kind} in the footer")
