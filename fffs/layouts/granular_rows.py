"""granular's datapoints with arrays, and optionally numbers, as ``.npy`` files; other blobs as they are stored.

They are shown as a tree in which some files are decoded, or, if that would be too large or some datapoints are damaged,
as rows. A blob holds the data of an array as a ``.npy`` file does, so only the header of the file is made here.
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
from fffs.layouts.granular import DataSetFiles, KeyLayout
from fffs.layouts.plain import number_names
from fffs.layouts.refs_table import check_row
from fffs.layouts.rows import MOST_FILES, DecodedFiles, Entries, FileContent, Row
from fffs.records.store import RecordStore
from fffs.tree.tree import Tree

LARGEST = 128 << 20
"""The largest blob, in bytes, that is decoded as a whole, because its msgpack encoding is unusual."""

MOST_DIMENSIONS = 32

_HEAD = 512  # bytes at the beginning of a blob that hold dtype and shape of an array
_INTEGERS = {"i64": "<i8", "u64": "<u8"} | {f"int({size})": f"<u{size}" for size in (1, 2, 4, 8)}

_Show = Callable[["_Blob"], FileContent]


class _Blob:
    """A blob of the store."""

    def __init__(self, store: RecordStore, record: int) -> None:
        self._store, self.record = store, record
        self.length = store.length(record)

    def read(self, size: int) -> bytes:
        """Read the first ``size`` bytes."""
        return self._store.read_range(self.record, 0, size).tobytes()

    def file(self, prefix: bytes = b"", start: int = 0) -> FileContent:
        """Return a file of ``prefix``, followed by the bytes of the blob from ``start`` on."""
        return FileContent(prefix, self.record, start, self.length - start)

    def bad(self, problem: str) -> FileContent:
        """Return a file that cannot be read because of ``problem``."""
        file, row = self._store.locate(self.record)
        return FileContent(b"", self.record, 0, self.length, f"{file.index.path}: record {row}: {problem}")


def shown_keys(data: DataSetFiles, arrays: bool, numbers: bool) -> list[KeyLayout]:
    """Return the keys of a data set with the endings of their files. arrays, numbers: as for ``GranularRows``."""
    return [_shown(key, arrays, numbers)[0] for key in data.keys]


def decoded_files(
    data: DataSetFiles, tree: Tree, store: RecordStore, arrays: bool, numbers: bool
) -> DecodedFiles | None:
    """Return which files of the tree of a data set are decoded, or None. Arguments as for ``GranularRows``."""
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

    def load(record: int) -> FileContent:
        _, _, position = columns[bisect.bisect_right(firsts, record) - 1]
        return shows[position](_Blob(store, record))

    return DecodedFiles(nodes, load)


class GranularRows:
    """The rows of a data set."""

    def __init__(self, data: DataSetFiles, store: RecordStore, arrays: bool, numbers: bool) -> None:
        """arrays, numbers: show arrays, and numbers, as ``.npy`` files."""
        self._data, self._store = data, store
        self.n, self.mtime = data.n, data.mtime
        self.files = {specs.NAME.encode(): _Blob(store, data.spec_record).file()}
        self._sequences = [key.type.sequence for key in data.keys]
        self._shown = [_shown(key, arrays, numbers) for key in data.keys]

    def record(self, number: int) -> int:
        """Return the row's record in refs.bag, or without a refs.bag the blob of the first key."""
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
                    f"{file.index.path}: record {within}: not a row of a data set: {error}; other rows are unaffected",
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
        """Return (first blob, number of blobs) of each key. Raises ValueError."""
        if self._store.length(record) > 32 * (len(self._sequences) + 1):
            raise ValueError(f"{self._store.length(record)} bytes are too many")
        places = check_row(refs.decode(self._store.read_one(record).tobytes(), self._sequences), shard)
        if sum(count for _, count in places) > MOST_FILES:
            raise ValueError(f"it has more than {MOST_FILES} files")
        return places


# ---------------------------------------------------------------- files of blobs


def _shown(key: KeyLayout, arrays: bool, numbers: bool) -> tuple[KeyLayout, _Show]:
    """Return a key with the ending of its files, and the function that makes a file of a blob."""
    show = _array(key.type) if arrays else None
    if show is None and numbers and key.type.text in _INTEGERS:
        show = _fixed(_INTEGERS[key.type.text], ())
    if show is None:
        return key, _Blob.file
    return KeyLayout(key.name, key.type, b".npy"), show


def _array(kind: Type) -> _Show | None:
    """Return the function that shows arrays of a type; None if it is not an array type, or has no ``.npy`` form."""
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
    """Return the function that shows arrays of a fixed dtype and shape."""
    prefix, size = npy.header(dtype, shape), math.prod(shape) * np.dtype(dtype).itemsize

    def show(blob: _Blob) -> FileContent:
        if blob.length != size:
            return blob.bad(f"{blob.length} bytes for an array of {dtype} and shape {shape}")
        return blob.file(prefix)

    return show


def _packed(blob: _Blob) -> FileContent:
    """Show an array that is stored as msgpack with its dtype and shape. Raises ReadError, which may be temporary."""
    try:
        head = _parse(blob.read(_HEAD), blob.length)
        if head is not None:
            return blob.file(*head)
        if blob.length > LARGEST:
            return blob.bad(f"an array of {blob.length} bytes in an unusual msgpack encoding, which is too large")
        return FileContent(npy.encode(decode_array(blob.read(blob.length))), blob.record)
    except RecordError as error:
        return FileContent(b"", blob.record, 0, blob.length, str(error))
    except ValueError as error:
        return blob.bad(f"not an array: {error}")


def _parse(head: bytes, length: int) -> tuple[bytes, int] | None:
    """Return the header of the .npy file of a blob, and where the array's data begins in the blob.

    Returns None if the blob is not an array in its shortest encoding. Raises ValueError for an invalid dtype.
    """
    try:
        if head[0] != 0x93 or head[1] & 0xE0 != 0xA0:  # an array of 3 items; a string of up to 31 bytes
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
