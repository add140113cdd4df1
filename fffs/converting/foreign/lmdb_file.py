"""Reads the main database of an LMDB file, without liblmdb.

liblmdb maps the file and trusts what is in it: a truncated or damaged file ends the process. Here every page is read
and checked. The format is that of LMDB 0.9 on little-endian machines with 64 bits, which almost all are.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from fffs.base.descriptors import above_standard
from fffs.base.failures import writing
from fffs.base.withblock import closed_on_error
from fffs.converting.foreign.items import Bytes, ForeignItems
from fffs.errors import MetadataError, UnsupportedError, UsageError
from fffs.files.file import File
from fffs.files.local import LocalFile

MAGIC: Final = struct.pack("<II", 0xBEEFC0DE, 1)
DATABASE: Final = struct.Struct("<IHHQQQQQ")  # a number, flags, depth, 3 numbers of pages, entries, root
META: Final = struct.Struct("<8sQQ48s48sQQ")  # magic, address, size of the map, 2 databases, last page, transaction
PAGE: Final = struct.Struct("<QHHHH")  # number, a number, flags, end of the pointers, begin of the nodes
NODE: Final = struct.Struct("<HHHH")  # size (2), flags, size of the key
LARGEST_PAGE: Final = 1 << 16
LEAST: Final = 4096  # bytes of which the first page has its header at least
BRANCH, LEAF, META_PAGE = 1, 2, 8
BIG, SUB_DATABASE, DUPLICATES = 1, 2, 4
DUPLICATE_SORT: Final = 4  # flag of a database
NOTHING: Final = 2**64 - 1  # the root of an empty database
DEEPEST: Final = 32  # levels of pages, the most that LMDB uses


def is_lmdb(head: bytes) -> bool:
    """Return whether a file begins like one of LMDB. head: at least 24 bytes."""
    return head[PAGE.size : PAGE.size + len(MAGIC)] == MAGIC and head[10:12] == struct.pack("<H", META_PAGE)


def headers(file: File) -> tuple[bytes, bytes]:
    """Return the two headers, of which each transaction changes one. Raises ReadError.

    A writer that maps the file (MDB_WRITEMAP) and syncs it later changes pages without another time of modification.
    """
    first = file.read_bytes(0, PAGE.size + META.size)
    size = int.from_bytes(first[PAGE.size + 24 : PAGE.size + 28], "little")  # of pages
    return first, file.read_bytes(min(size, LARGEST_PAGE), PAGE.size + META.size)


@dataclass(frozen=True)
class _Value:
    key: bytes
    offset: int
    size: int


class LmdbItems(ForeignItems):
    """The main database: keys are names, or values are records, in the order of the keys."""

    def _load(self) -> None:
        self._file, self._copy = self.open_files[0], contextlib.ExitStack()
        self._tree = _Pages(self._file, self.shown)
        if self._file.descriptor < 0:  # pages lie in no order, so that each would be a request
            with closed_on_error((self._copy,)):
                with writing(f"a copy of {self.shown} in the temporary folder"):
                    fd = self._copy.enter_context(self._file.local())
                    self._file = self._copy.enter_context(LocalFile(above_standard(os.dup(fd)), self.shown))
                self._tree = _Pages(self._file, self.shown)

    def close(self) -> None:
        """As in ``ForeignItems``."""
        super().close()
        self._copy.close()

    def files(self) -> Iterator[tuple[bytes, Bytes]]:
        """As in ``ForeignItems``."""
        for value in self._tree.values():
            yield value.key, self._read(value)

    def sizes(self) -> Iterator[tuple[bytes, int]]:
        """As in ``ForeignItems``. Values are not read."""
        return ((value.key, value.size) for value in self._tree.values())

    def values(self, column: str | None) -> Iterator[Bytes]:
        """As in ``ForeignItems``. The only column is ``value``."""
        self._refuse_column(column)
        return map(self._read, self._tree.values())

    def left_out(self, column: str | None, *, names: bool) -> list[str]:
        """As in ``ForeignItems``."""
        self._refuse_column(column)
        return [] if names else [f"{self.shown}: the keys are not kept; records are in their order"]

    def _refuse_column(self, column: str | None) -> None:
        if column not in (None, "value"):
            raise UsageError(f"{self.shown}: has no column {column!r}; the values of an LMDB are the column 'value'")

    def _read(self, value: _Value) -> bytes:
        data = self._file.read_bytes(value.offset, value.size)
        if len(data) < value.size:
            raise MetadataError(f"{self.shown}: the value of {value.key!a:.200} is truncated; copy the file again")
        return data


class _Pages:
    """The pages of a file."""

    def __init__(self, file: File, shown: str) -> None:
        """Raises MetadataError, UnsupportedError, ReadError."""
        self._file, self._shown = file, shown
        first = self._meta(0)
        self._size = DATABASE.unpack(first[3])[0]
        if self._size not in (1 << k for k in range(8, LARGEST_PAGE.bit_length())):
            raise self._damaged(f"pages of {self._size} bytes")
        newest = max(first, self._meta(self._size), key=lambda meta: int(meta[6]))
        _, flags, depth, *_, self._root = DATABASE.unpack(newest[4])
        if flags & DUPLICATE_SORT:
            raise UnsupportedError(f"{shown}: its keys have several values (MDB_DUPSORT), which are not converted")
        if depth > DEEPEST:
            raise self._damaged(f"a tree of {depth} levels")

    def _meta(self, at: int) -> tuple[bytes, int, int, bytes, bytes, int, int]:
        data = self._file.read_bytes(at, PAGE.size + META.size)
        if len(data) < PAGE.size + META.size or not is_lmdb(data):
            if at == 0 and data[PAGE.size : PAGE.size + 4] == MAGIC[:4]:
                raise UnsupportedError(f"{self._shown}: an LMDB of another version or kind of machine; export it there")
            raise self._damaged(f"no header at byte {at}")
        return META.unpack_from(data, PAGE.size)

    def _damaged(self, what: str) -> MetadataError:
        return MetadataError(f"{self._shown}: the LMDB is damaged or truncated ({what}); copy it again")

    def values(self) -> Iterator[_Value]:
        """Yield where all values are, in the order of their keys. No value is there twice, so they are no more bytes
        than the file has. Raises MetadataError, UnsupportedError, ReadError.
        """
        pages, left = self._file.size // self._size, self._file.size
        stack = [] if self._root == NOTHING else [(self._root, 1)]
        while stack:
            number, level = stack.pop()
            pages -= 1
            if pages < 0 or level > DEEPEST:
                raise self._damaged("its pages form no tree")
            data, flags, places = self._page(number)
            if flags & BRANCH:
                stack += [(self._child(data, place), level + 1) for place in reversed(places)]
                continue
            for place in places:
                value = self._value(data, place, number)
                left -= value.size
                if left < 0:
                    raise self._damaged("its values share bytes")
                yield value

    def _page(self, number: int) -> tuple[bytes, int, tuple[int, ...]]:
        """Return a page of the tree, its flags, and the places of its nodes."""
        if not 2 <= number < self._file.size // self._size:
            raise self._damaged(f"there is no page {number}")
        data = self._file.read_bytes(number * self._size, self._size)
        if len(data) < self._size:
            raise self._damaged(f"page {number} is cut")
        own, _, flags, lower, upper = PAGE.unpack_from(data)
        kind = flags & 0x6F  # without those that only memory has
        if own != number or kind not in (BRANCH, LEAF) or not PAGE.size <= lower <= upper <= self._size or lower % 2:
            raise self._damaged(f"page {number} is none of a tree")
        places = struct.unpack_from(f"<{(lower - PAGE.size) // 2}H", data, PAGE.size)
        if any(not upper <= place <= self._size - NODE.size for place in places):
            raise self._damaged(f"a node of page {number} is outside of it")
        return data, kind, places

    def _child(self, data: bytes, place: int) -> int:
        low, high, top, _ = NODE.unpack_from(data, place)
        return int(low | high << 16 | top << 32)

    def _value(self, data: bytes, place: int, number: int) -> _Value:
        """Return where the value of a node of a leaf is."""
        low, high, flags, length = NODE.unpack_from(data, place)
        size, begin = low | high << 16, place + NODE.size
        at, key = begin + length, data[begin : begin + length]
        if flags & (SUB_DATABASE | DUPLICATES):
            raise UnsupportedError(
                f"{self._shown}: {key!a:.200} is a database of its own; copy it to an LMDB of its own (mdb_dump -s)"
            )
        if at + (8 if flags & BIG else size) > self._size:
            raise self._damaged(f"a node of page {number} is cut")
        if not flags & BIG:
            return _Value(key, number * self._size + at, size)
        offset = int.from_bytes(data[at : at + 8], "little") * self._size + PAGE.size
        if offset < 2 * self._size or offset + size > self._file.size:
            raise self._damaged(f"the value of {key!a:.200} is outside of the file")
        return _Value(key, offset, size)
