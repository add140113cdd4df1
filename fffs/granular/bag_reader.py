"""BagReader: reads records of a Bag or bagz file by number, in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, overload

import numpy as np

from fffs.base.numbers import Indices, as_number
from fffs.base.paths import PathLike, without_zero
from fffs.base.withblock import Closing, closed_on_error
from fffs.errors import ClosedError, RecordError
from fffs.files.file import UInt8Array
from fffs.formats.bag import COMPRESSED, load
from fffs.granular.zstd import Decompressor
from fffs.objects.locations import open_file
from fffs.records.identity import Identity
from fffs.records.index import RecordIndex
from fffs.records.reopening import OpenedNames, open_unreplaced, opened_again, refuse_others, refuse_replaced
from fffs.records.sequence import runs_of
from fffs.records.sidecar import with_checksums
from fffs.records.small_records import SmallRecords
from fffs.records.source_file import SourceFile
from fffs.records.store import RecordStore

MAX_RECORD = 1 << 30


def open_bag(path: str, layout: str | None = None, check_data: bool = True) -> tuple[SourceFile, str]:
    """Open a Bag. Returns the file with its index, which the caller closes, and its layout.

    check_data: compare records with the checksums in a sidecar, if there is one.
    """

    def attempt() -> tuple[SourceFile, str]:
        file = open_file(path)
        with closed_on_error((file,)):
            index, found = load(file, layout)
            return SourceFile(file, with_checksums(file, index), check_data), found

    return open_unreplaced(attempt)


def size_of(source: SourceFile, layout: str) -> int:
    """Return the size of a Bag with its table, in bytes."""
    return source.index.file_size + (8 * len(source.index) if layout == "v3" else 0)


def clip(wanted: range, count: int) -> range:
    """Return the part of a range that lies between 0 and count, without iterating over the rest."""
    if wanted.step < 0:
        return clip(wanted[::-1], count)[::-1]
    start = wanted.start if wanted.start >= 0 else wanted.start % wanted.step
    return range(start, max(start, min(wanted.stop, count)), wanted.step)


class BagReader(Closing):
    """Reads a Bag (``.bag`` of any layout) or a bagz file (``.bag``, ``.bagz``).

    ``reader[3]`` is bytes; ``reader[2:9]``, ``reader[range(2, 9)]`` (both clipped) and ``reader[[5, 1, 5]]`` are lists
    of bytes, read in one batch. A reader may be used from any thread and after fork. It can be pickled and copied: the
    copy opens the file again, and raises SourceChangedError if it is another file, as ``fffs.FileReader`` does.

    Examples:
        >>> with fffs.granular.BagReader("train.bag") as reader:
        ...     reader[2], reader[[0, 1]]
        (b'three', [b'one', b'two'])

    """

    def __init__(
        self, path: PathLike, layout: str | None = None, max_record: int = MAX_RECORD, *, check_data: bool = True
    ) -> None:
        """path: the file. layout: "v1", "v2" or "v3", for a file that looks like another (see ``fffs.formats.bag``).
        max_record: the largest record of a ``.bagz``, in bytes when decompressed. check_data: verify the checksums
        that ``fffs verify --keep`` wrote beside the file, if there are any.

        Raises:
            SourceNotFoundError: the file, or its table of records, does not exist.
            FormatError: the file is damaged or not a Bag. MetadataError: the checksums belong to another file.
            ReadError: the operating system could not read.

        """
        self.path = without_zero(path)
        self.check_data = bool(check_data)
        self._names, self._arguments = OpenedNames(self.path), (layout, max_record)
        self._decompress: Callable[[Any], bytes] | None = None
        if self.path.endswith(COMPRESSED):
            self._decompress = Decompressor(max_record)
        self._open(*open_bag(self.path, layout, self.check_data))

    def _open(self, source: SourceFile, layout: str) -> None:
        """Take over an open Bag."""
        self.layout = layout
        self._store = RecordStore([source])
        self._small = SmallRecords(self._store)
        self._store.expect_random_reads()
        self.size = size_of(source, layout)
        """The size of the file in bytes, including the table if it is a separate file."""

    @property
    def store(self) -> RecordStore:
        """The store of the records, which may be compressed. Raises ClosedError after ``close``."""
        if self._store.closed:
            raise ClosedError(f"{self.path}: the reader has been closed")
        return self._store

    @property
    def n(self) -> int:
        """The number of records."""
        return self._store.n

    def __len__(self) -> int:
        return self.n

    def index(self) -> RecordIndex:
        """Return where the stored records lie in the file. The arrays are shared: copy them before changing them."""
        return self.store.files[0].index

    # ------------------------------------------------------------ reading

    def read(self, indices: Indices) -> list[UInt8Array]:
        """Read records in one batch. Returns a 1-D uint8 array per index, in the order of the indices.

        The arrays share one buffer; those of a ``.bagz`` do not. See ``fffs.FileReader.read``.

        Raises:
            RecordIndexError, RecordError, ReadError, ClosedError: as ``fffs.FileReader.read``.

        """
        if self._decompress is None:
            return self.store.read(indices)
        return [np.frombuffer(bytearray(data), np.uint8) for data in self._contents(indices)]

    def read_one(self, index: int) -> UInt8Array:
        """Read one record; as ``read``."""
        return self.read([index])[0]

    def read_range(self, index: int, start: int, stop: int) -> UInt8Array:
        """Read bytes start to stop of a record, both clipped to its size. For a ``.bagz``, the whole record is read."""
        if self._decompress is None:
            return self.store.read_range(index, start, stop)
        start, stop = as_number(start, "the bounds of a range"), as_number(stop, "the bounds of a range")
        return self.read_one(index)[max(start, 0) : max(stop, 0)]

    def _contents(self, indices: Indices) -> list[bytes]:
        # The indices are iterated over twice, which a generator does not allow.
        numbers = indices if isinstance(indices, np.ndarray) else list(indices)
        stored = self.store.read(numbers)
        if self._decompress is None:
            return [data.tobytes() for data in stored]
        return [self._content(int(number), data) for number, data in zip(np.ravel(numbers), stored, strict=True)]

    def _neighbours(self, numbers: range) -> list[bytes]:
        records = None
        if self._decompress is None and numbers.step == 1 and len(numbers) > 1:
            records = self._small.read_run(numbers.start, numbers.stop)
        return self._contents(numbers) if records is None else records

    def _content(self, number: int, data: UInt8Array) -> bytes:
        assert self._decompress is not None
        try:
            return self._decompress(data)
        except ValueError as error:
            number %= len(self)
            raise RecordError(
                f"{self.path}: record {number} (at byte {int(self._store.files[0].index.starts[number])}): {error}",
                path=self.path,
                record=number,
                number=number,
            ) from None

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice | range | list[int] | np.ndarray) -> list[bytes]: ...
    def __getitem__(self, index: int | slice | range | list[int] | np.ndarray) -> bytes | list[bytes]:
        if type(index) is int and 0 <= index < self._store.n and self._decompress is None:
            return self._small.read(index)
        if isinstance(index, slice):
            return self._neighbours(range(len(self))[index])
        if isinstance(index, range):
            return self._neighbours(clip(index, len(self)))
        if isinstance(index, (list, tuple, np.ndarray)):
            return self._contents(index)
        number = as_number(index)
        data = self.store.read_one(number)
        return data.tobytes() if self._decompress is None else self._content(number, data)

    def __getitems__(self, indices: Sequence[int]) -> list[bytes]:
        """Return records in one batch, for loaders of torch and (``_getitems``) Grain. Raises as ``read``."""
        return self._contents(indices)

    _getitems = __getitems__

    def __iter__(self) -> Iterator[bytes]:
        for part in runs_of(len(self), self.store.lengths):
            yield from self._contents(part)

    # ------------------------------------------------------------ life

    def close(self) -> None:
        """Close the file after reads in other threads have finished. May be called again."""
        self._store.close()

    def __reduce__(self) -> tuple[Any, ...]:
        path = self._names.now()
        refuse_replaced(self._store, lambda: BagReader(path, *self._arguments, check_data=self.check_data).store)
        kind = partial(type(self), check_data=self.check_data)
        return opened_again, (kind, self._names, *self._arguments), (self.path, self._store.identity)

    def __setstate__(self, state: tuple[str, list[Identity]]) -> None:
        self.path, identity = state
        refuse_others(self._store, identity)

    def __repr__(self) -> str:
        return f"<BagReader {self.path!r}: {'closed' if self._store.closed else f'{len(self)} records'}>"
