"""RowReader: reads rows of one or several shards of a data set, in batches through one RecordStore."""

from __future__ import annotations

import bisect
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np

from fffs.base.numbers import Indices, as_number, resolve
from fffs.base.withblock import Closing
from fffs.errors import ClosedError, FffsError, RecordError, SourceChangedError, UsageError
from fffs.granular import refs
from fffs.granular.bag_reader import clip
from fffs.granular.codecs import Codec
from fffs.granular.codecs import decoders as supplied
from fffs.granular.masks import Mask, Wanted, select
from fffs.granular.shards import Shard, open_shards
from fffs.granular.spec import Type
from fffs.records.identity import Identity
from fffs.records.reopening import OpenedNames, opened_again, refuse_others, refuse_replaced
from fffs.records.small_records import SmallRecords
from fffs.records.store import RecordStore


def _takes(decode: Codec, arguments: tuple[str, ...]) -> bool:
    """Return whether a decoder can be called with the arguments of a type."""
    try:
        inspect.signature(decode).bind(b"", *arguments)
    except TypeError:
        return False
    except ValueError:  # the decoder has no signature
        pass
    return True


class RowReader(Closing):
    """The base of DatasetReader and ShardedDatasetReader. May be used from any thread, and after fork."""

    def __init__(self, path: str, decoders: Mapping[str, Codec] | None, check_data: bool) -> None:
        self.path, self.check_data = path, bool(check_data)
        self._names = OpenedNames(path)
        self._decoders = supplied if decoders is None else decoders

    def _open(self, folders: Sequence[str], spec: dict[str, str]) -> None:
        """Open all shards, or none."""
        sources, self._shards = open_shards(self.path, folders, spec, self.check_data)
        self._first_rows = [0, *itertools.accumulate(shard.rows for shard in self._shards)]
        self._store = RecordStore(sources)
        self._small = SmallRecords(self._store)
        self._store.expect_random_reads()
        self._spec = spec
        sequences = not self._shards or self._shards[0].layout != "v3"
        self._types = {key: Type.parse(kind, sequences) for key, kind in spec.items()}
        self._all: list[Wanted] | None = None  # what no mask selects, when it was first asked for

    @property
    def spec(self) -> dict[str, str]:
        """The keys, sorted, with their types."""
        return dict(self._spec)

    @property
    def size(self) -> int:
        """The size in bytes of all Bags with their tables."""
        return sum(shard.size for shard in self._shards)

    @property
    def n(self) -> int:
        """The number of rows."""
        return self._first_rows[-1]

    def __len__(self) -> int:
        return self.n

    # ------------------------------------------------------------ reading

    def read(self, indices: Indices, mask: Mask = None) -> list[dict[str, Any]]:
        """Read rows, with all their blobs in one batch. Returns a dictionary per index, in the order of the indices.

        Args:
            indices: row numbers, in any order; negative ones count from the end.
            mask: see ``Mask``. Only the selected blobs are read.

        Raises:
            RecordIndexError: a row does not exist.
            RecordError: a blob is damaged; the error names its file, record and offset.
            MetadataError: the rows have more blobs than there are.
            UsageError: the mask has an unknown key, or a type has no decoder.
            ReadError, ClosedError: a blob cannot be read, or the reader is closed.

        """
        if self._store.closed:
            raise ClosedError(f"{self.path}: the reader has been closed")
        numbers = resolve(indices, len(self)).tolist()
        wanted = self._wanted(mask)
        if not wanted:
            return [{} for _ in numbers]
        places = [self._place(number) for number in numbers]
        entries = self._entries(places)
        blobs = refs.BlobNumbers(self.path, self._store.n)
        plan = [
            self._plan(shard, row, entry, wanted, blobs) for (shard, row), entry in zip(places, entries, strict=True)
        ]
        if blobs.once and int(self._store.lengths(blobs.once).sum()) > self.size:
            raise blobs.shared()
        buffer, offsets = self._store.read_joined(blobs.numbers)
        bounds, content, at = offsets.tolist(), buffer.data, iter(range(len(blobs.numbers)))

        def next_value(want: Wanted) -> Any:
            k = next(at)
            return self._decode(want, blobs.numbers[k], bytes(content[bounds[k] : bounds[k + 1]]))

        return [
            {
                want.key: next_value(want) if count is None else [next_value(want) for _ in range(count)]
                for want, count in zip(wanted, counts, strict=True)
            }
            for counts in plan
        ]

    def read_one(self, index: int, mask: Mask = None) -> dict[str, Any]:
        """Read one row; as ``read``."""
        number = index if type(index) is int else as_number(index, f"{self.path}: row numbers")
        if mask is None and 0 <= number < self._first_rows[-1]:
            wanted = self._all = self._all or self._wanted(None)
            row = self._read_row(number, wanted)
            if row is not None:
                return row
        return self.read([number], mask)[0]

    def _read_row(self, number: int, wanted: list[Wanted]) -> dict[str, Any] | None:
        """Read a row without a batch. Returns None if its blobs are not in memory, or not where its number says."""
        shard, row = self._place(number)
        if shard.refs is not None or not wanted:
            return None
        numbers = [shard.columns[want.position][0] + row for want in wanted]
        blobs = self._small.read_several(numbers) if len(numbers) > 1 else [self._small.read(numbers[0])]
        if blobs is None:
            return None
        return {want.key: self._decode(want, k, blob) for want, k, blob in zip(wanted, numbers, blobs, strict=True)}

    def _read_columns(self, rows: range, wanted: list[Wanted]) -> dict[str, list[Any]] | None:
        """Read neighbouring rows, each column with one read. Returns as ``_read_row``."""
        if len(rows) < 2 or rows.step != 1:
            return None
        (shard, row), (last, _) = self._place(rows[0]), self._place(rows[-1])
        if shard.refs is not None or shard is not last:
            return None
        columns: dict[str, list[Any]] = {}
        for want in wanted:
            first = shard.columns[want.position][0] + row
            blobs = self._small.read_run(first, first + len(rows))
            if blobs is None:
                return None
            columns[want.key] = [self._decode(want, first + k, blob) for k, blob in enumerate(blobs)]
        return columns

    def _decode(self, want: Wanted, record: int, blob: bytes) -> Any:
        try:
            return want.decode(blob, *want.type.arguments)
        except FffsError:
            raise
        except ValueError as error:
            problem = f"not of type {want.type.text}: {str(error)[:300] or type(error).__name__}"
            raise self._damaged(record, problem) from error
        except TypeError:
            if _takes(want.decode, want.type.arguments):
                raise
            raise UsageError(
                f"{self.path}: there is no decoder for {want.type.text!r:.60}, the type of {want.key!r}: that of "
                f"{want.type.name!r:.60} takes other arguments; pass one in decoders="
            ) from None

    def _place(self, number: int) -> tuple[Shard, int]:
        k = bisect.bisect_right(self._first_rows, number) - 1
        return self._shards[k], number - self._first_rows[k]

    def _entries(self, places: list[tuple[Shard, int]]) -> list[list[refs.Ref] | None]:
        """Return the entries of refs.bag for each row, or None for rows of shards without a refs.bag."""
        numbers = [shard.refs + row for shard, row in places if shard.refs is not None]
        buffer, offsets = self._store.read_joined(numbers)
        bounds, content, k = offsets.tolist(), buffer.data, 0
        sequences = [kind.sequence for kind in self._types.values()]
        entries: list[list[refs.Ref] | None] = []
        for shard, row in places:
            if shard.refs is None:
                entries.append(None)
                continue
            try:
                entries.append(refs.decode(bytes(content[bounds[k] : bounds[k + 1]]), sequences))
            except ValueError as error:
                raise self._damaged(shard.refs + row, f"not a row of a data set: {error}") from None
            k += 1
        return entries

    def _plan(
        self, shard: Shard, row: int, entry: list[refs.Ref] | None, wanted: list[Wanted], blobs: refs.BlobNumbers
    ) -> list[int | None]:
        """Add the selected blobs of a row to ``blobs``. Returns their number for each key, None for a scalar."""
        counts: list[int | None] = []
        for want in wanted:
            first, count = shard.columns[want.position]
            ref = row if entry is None else entry[want.position]
            begin, length = (ref, 1) if isinstance(ref, int) else ref
            if begin + length > count:
                assert shard.refs is not None
                raise self._damaged(
                    shard.refs + row,
                    f"{want.key!r} has the blobs {begin} to {begin + length - 1}, but only {count} exist",
                )
            begin += first
            if entry is None:
                blobs.numbers.append(begin)
                counts.append(None)
                continue
            part = range(length)
            if not isinstance(ref, int):
                part = part[want.part] if isinstance(want.part, slice) else clip(want.part, length)
            wanted_blobs = range(begin + part.start, begin + part.stop, part.step)
            blobs.add((id(shard), want.position, row), wanted_blobs)
            counts.append(None if isinstance(ref, int) else len(part))
        return counts

    def _wanted(self, mask: Mask) -> list[Wanted]:
        return select(self.path, self._types, self._decoders, mask)

    # ------------------------------------------------------------ failures

    def _damaged(self, record: int, problem: str) -> RecordError:
        file, row = self._store.locate(record)
        return RecordError(
            f"{file.index.path}: record {row} (at byte {int(file.index.starts[row])}): {problem}; other records are "
            "unaffected",
            path=file.index.path,
            record=row,
            number=record,
        )

    # ------------------------------------------------------------ as a sequence

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: Any) -> dict[str, Any]: ...
    def __getitem__(self, index: Any) -> dict[str, Any]:
        """``reader[i]``, ``reader[i, mask]``: a row. With a slice or range (both clipped) or a list of numbers, and an
        optional mask: a dictionary of key -> list of values.
        """
        mask: Mask = None
        if isinstance(index, tuple):
            if len(index) != 2:
                raise UsageError(f"{self.path}: index a reader as reader[index] or reader[index, mask]")
            index, mask = index
        if isinstance(index, slice):
            index = range(len(self))[index]
        elif isinstance(index, range):
            index = clip(index, len(self))
        elif not isinstance(index, (list, np.ndarray)):
            return self.read_one(index, mask)
        wanted = self._wanted(mask)
        if isinstance(index, range) and (columns := self._read_columns(index, wanted)) is not None:
            return columns
        rows = self.read(index, mask)
        return {want.key: [row[want.key] for row in rows] for want in wanted}

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return rows in one batch, for loaders of torch and (``_getitems``) Grain. Raises as ``read``."""
        return self.read(indices)

    _getitems = __getitems__

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[k] for k in range(len(self)))

    # ------------------------------------------------------------ life

    def close(self) -> None:
        """Close the files after reads in other threads have finished. May be called again."""
        self._store.close()

    def _reduced(self, kind: Callable[..., RowReader], arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the value for ``__reduce__``. ``kind(path, *arguments)`` makes a reader of the folder."""
        path = self._names.now()
        refuse_replaced(self._store, lambda: kind(path, *arguments)._store)
        return opened_again, (kind, self._names, *arguments), (self.path, self._store.identity, self._spec)

    def __setstate__(self, state: tuple[str, list[Identity], dict[str, str]]) -> None:
        self.path, identity, spec = state
        refuse_others(self._store, identity)
        if self._spec != spec:
            self.close()
            raise SourceChangedError(f"{self.path}: its spec.json has changed; open the data set again")
