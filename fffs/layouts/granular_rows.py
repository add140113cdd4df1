"""granular's datapoints with arrays, and if asked for numbers, as ``.npy`` files; other blobs as they are stored.

As a tree some of whose files are decoded, or, where that would be too much or some datapoints are damaged, as rows. An
array's bytes are in its blob as they are in a ``.npy`` file: only what such a file begins with is made here.
"""

from __future__ import annotations

import bisect
import math
import stat
from collections.abc import Callable

import numpy as np

from fffs.errors import RecordError
from fffs.granular import refs
from fffs.granular import spec as specs
from fffs.granular.codecs import decode_array
from fffs.granular.shards import Shard
from fffs.granular.spec import Type
from fffs.layouts import npy
from fffs.layouts.granular import DataSetFiles, Key
from fffs.layouts.plain import number_names
from fffs.layouts.refs_table import check_row
from fffs.layouts.rows import MOST_FILES, DecodedFiles, Entries, File, Row
from fffs.records.store import RecordStore
from fffs.tree.tree import Tree

LARGEST = 128 << 20
"""Bytes of a blob that is decoded as a whole, because it is packed in a way that nobody packs."""

MOST_DIMENSIONS = 32

_HEAD = 512  # bytes of a blob in which dtype and shape of an array end
_INTEGERS = {"i64": "<i8", "u64": "<u8"} | {f"int({size})": f"<u{size}" for size in (1, 2, 4, 8)}

_Show = Callable[["_Blob"], File]


class _Blob:
    """One blob of the store."""

    def __init__(self, store: RecordStore, record: int) -> None:
        self._store, self.record = store, record
        self.length = store.length(record)

    def read(self, size: int) -> bytes:
        """Its first bytes."""
        return self._store.read_range(self.record, 0, size).tobytes()

    def file(self, prefix: bytes = b"", start: int = 0) -> File:
        """The bytes from start on, behind some others."""
        return File(prefix, self.record, start, self.length - start)

    def bad(self, problem: str) -> File:
        """Its file, which cannot be read."""
        file, row = self._store.locate(self.record)
        return File(b"", self.record, 0, self.length, f"{file.index.path}: record {row}: {problem}")


def shown_keys(data: DataSetFiles, arrays: bool, numbers: bool) -> list[Key]:
    """The keys of a data set with the endings that their files have. arrays, numbers: as for ``GranularRows``."""
    return [_shown(key, arrays, numbers)[0] for key in data.keys]


def decoded_files(
    data: DataSetFiles, tree: Tree, store: RecordStore, arrays: bool, numbers: bool
) -> DecodedFiles | None:
    """What is decoded in the tree of a data set, if anything. Arguments are those of ``GranularRows``."""
    shows = [_shown(key, arrays, numbers)[1] for key in data.keys]
    columns = sorted(
        (first, count, position)
        for shard in data.shards
        for position, (first, count) in enumerate(shard.columns)
        if shows[position] is not _Blob.file
    )
    if not columns:
        return None
    records = np.zeros(store.n, np.uint8)
    for first, count, _ in columns:
        records[first : first + count] = 1
    is_file = tree.kinds == stat.S_IFREG
    nodes = np.zeros(len(tree.mode), np.uint8)
    nodes[is_file] = records[tree.ref[is_file]]
    firsts = [first for first, _, _ in columns]

    def load(record: int) -> File:
        _, _, position = columns[bisect.bisect_right(firsts, record) - 1]
        return shows[position](_Blob(store, record))

    return DecodedFiles(nodes, load)


class GranularRows:
    """The rows of a data set."""

    def __init__(self, data: DataSetFiles, store: RecordStore, arrays: bool, numbers: bool) -> None:
        """arrays, numbers: show them as ``.npy`` files."""
        self._data, self._store = data, store
        self.n, self.mtime = data.n, data.mtime
        self.files = {specs.NAME.encode(): _Blob(store, data.spec_record).file()}
        self._sequences = [key.type.sequence for key in data.keys]
        self._shown = [_shown(key, arrays, numbers) for key in data.keys]

    def record(self, number: int) -> int:
        """The row's record of refs.bag, or where there is none the blob of the first key."""
        shard, row = self._data.place(number)
        return row + (shard.columns[0][0] if shard.refs is None else shard.refs)

    def load(self, number: int) -> Row:
        """Find a row's blobs, and the dtypes and shapes of its arrays. See ``Rows``."""
        shard, row = self._data.place(number)
        if shard.refs is None:
            places = [(first + row, 1) for first, _ in shard.columns]
        else:
            record = shard.refs + row
            try:
                places = self._places(record, shard)
            except ValueError as error:
                file, within = self._store.locate(record)
                raise RecordError(
                    f"{file.index.path}: record {within}: no row of a data set: {error}; other rows are unaffected",
                    path=file.index.path,
                    record=within,
                    number=record,
                ) from None
        entries: Entries = {}
        for (key, show), (first, count) in zip(self._shown, places, strict=True):
            files = [show(_Blob(self._store, first + k)) for k in range(count)]
            if key.type.sequence:
                names = number_names(count)
                entries[key.file] = {name + key.ending: file for name, file in zip(names, files, strict=True)}
            else:
                entries[key.file] = files[0]
        return Row(entries)

    def _places(self, record: int, shard: Shard) -> list[tuple[int, int]]:
        """For each key its first blob and how many there are. Raises ValueError."""
        if self._store.length(record) > 32 * (len(self._sequences) + 1):
            raise ValueError(f"it has {self._store.length(record)} bytes")
        places = check_row(refs.decode(self._store.read_one(record).tobytes(), self._sequences), shard)
        if sum(count for _, count in places) > MOST_FILES:
            raise ValueError(f"it would be more than {MOST_FILES} files")
        return places


# ---------------------------------------------------------------- what is shown of a blob


def _shown(key: Key, arrays: bool, numbers: bool) -> tuple[Key, _Show]:
    """A key with the ending of its files, and what makes these of blobs."""
    show = _array(key.type) if arrays else None
    if show is None and numbers and key.type.text in _INTEGERS:
        show = _fixed(_INTEGERS[key.type.text], ())
    if show is None:
        return key, _Blob.file
    return Key(key.name, key.type, b".npy"), show


def _array(kind: Type) -> _Show | None:
    """What shows arrays of a type; None when it is none, or cannot be a file."""
    if kind.name != "array":
        return None
    if not kind.arguments:
        return _packed
    if len(kind.arguments) > MOST_DIMENSIONS:
        return None
    try:
        return _fixed(npy.dtype_of(kind.arguments[0]).str, tuple(int(length) for length in kind.arguments[1:]))
    except ValueError:
        return None


def _fixed(dtype: str, shape: tuple[int, ...]) -> _Show:
    """Arrays that are all of one dtype and shape."""
    prefix, size = npy.header(dtype, shape), math.prod(shape) * np.dtype(dtype).itemsize

    def show(blob: _Blob) -> File:
        if blob.length != size:
            return blob.bad(f"{blob.length} bytes for an array of {dtype} and shape {shape}")
        return blob.file(prefix)

    return show


def _packed(blob: _Blob) -> File:
    """An array with its dtype and shape, as msgpack. Raises ReadError, which another time may not come again."""
    try:
        head = _parse(blob.read(_HEAD), blob.length)
        if head is not None:
            return blob.file(*head)
        if blob.length > LARGEST:
            return blob.bad(f"an array of {blob.length} bytes, packed in an unusual way")
        return File(npy.encode(decode_array(blob.read(blob.length))), blob.record)
    except RecordError as error:
        return File(b"", blob.record, 0, blob.length, str(error))
    except ValueError as error:
        return blob.bad(f"no array: {error}")


def _parse(head: bytes, length: int) -> tuple[bytes, int] | None:
    """What the .npy file of a blob begins with, and where the array's bytes begin in the blob.

    None where it is packed in another way than the shortest, or is no array. Raises ValueError for what is no dtype.
    """
    try:
        if head[0] != 0x93 or head[1] & 0xE0 != 0xA0:  # a list of three; a text of up to 31 bytes
            return None
        at = 2 + (head[1] & 31)
        dtype = npy.dtype_of(head[2:at].decode("ascii"))
        if head[at] & 0xF0 != 0x90:
            return None
        shape = []
        dimensions, at = head[at] & 15, at + 1
        for _ in range(dimensions):
            width = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}.get(head[at], 0)
            if width == 0 and head[at] >= 0x80:
                return None
            shape.append(int.from_bytes(head[at + 1 : at + 1 + width], "big") if width else head[at])
            at += 1 + width
        width = {0xC4: 1, 0xC5: 2, 0xC6: 4}[head[at]]
        size, at = int.from_bytes(head[at + 1 : at + 1 + width], "big"), at + 1 + width
    except (IndexError, KeyError, UnicodeDecodeError):
        return None
    if at > len(head) or at + size != length or math.prod(shape) * dtype.itemsize != size:
        return None
    return npy.header(dtype.str, tuple(shape)), at
