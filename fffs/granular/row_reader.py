"""RowReader: reads rows of one or several shards of a data set, in batches through one RecordStore."""

from __future__ import annotations

import bisect
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from fffs.base.numbers import Indices, as_number, resolve
from fffs.base.withblock import Closing
from fffs.errors import ClosedError, FffsError, RecordError, SourceChangedError, UsageError
from fffs.granular import refs
from fffs.granular.bag_reader import clip
from fffs.granular.codecs import Codec
from fffs.granular.codecs import decoders as supplied
from fffs.granular.shards import Shard, open_shards
from fffs.granular.spec import Type
from fffs.records.identity import Identity
from fffs.records.reopening import OpenedNames, opened_again, refuse_others, refuse_replaced
from fffs.records.store import RecordStore

Mask = Mapping[str, Any] | Sequence[str] | None
"""Selects keys of a row: {key: True | False | range | slice}, without absent keys; a list of keys; or None for all."""


@dataclass(frozen=True)
class _Wanted:
    """A key that a mask selects. ``part``: the selected part of a sequence."""

    key: str
    position: int
    type: Type
    decode: Codec
    part: range | slice


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
        self._store.expect_random_reads()
        self._spec = spec
        sequences = not self._shards or self._shards[0].layout != "v3"
        self._types = {key: Type.parse(kind, sequences) for key, kind in spec.items()}

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

        def next_value(want: _Wanted) -> Any:
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
        return self.read([index], mask)[0]

    def _decode(self, want: _Wanted, record: int, blob: bytes) -> Any:
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
        self, shard: Shard, row: int, entry: list[refs.Ref] | None, wanted: list[_Wanted], blobs: refs.BlobNumbers
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

    # ------------------------------------------------------------ masks

    def _wanted(self, mask: Mask) -> list[_Wanted]:
        if mask is None:
            chosen: Mapping[str, Any] = dict.fromkeys(self._spec, True)
        elif isinstance(mask, Mapping):
            chosen = mask
        elif isinstance(mask, (str, bytes)):
            raise UsageError(f"{self.path}: a mask is a dictionary or a list of keys, not {mask!r:.60}")
        else:
            chosen = dict.fromkeys(mask, True)
        for key in chosen:
            if key not in self._types:
                raise UsageError(f"{self.path}: there is no key {key!r:.60}; the keys are {', '.join(self._spec)}")
        return [
            self._want(key, position, chosen[key])
            for position, key in enumerate(self._spec)
            if not (chosen.get(key) is None or chosen[key] is False)
        ]

    def _want(self, key: str, position: int, part: Any) -> _Wanted:
        kind = self._types[key]
        decode = self._decoders.get(kind.text) or self._decoders.get(kind.name)
        if decode is None:
            raise UsageError(
                f"{self.path}: there is no decoder for {kind.text!r:.60}, the type of {key!r}; pass one in decoders="
            )
        if kind.text in self._decoders and kind.arguments:
            kind = Type(kind.text, kind.text, (), kind.sequence)
        if part is True:
            return _Wanted(key, position, kind, decode, slice(None))
        if not isinstance(part, (range, slice)):
            raise UsageError(
                f"{self.path}: the mask of {key!r} must be True, False, a range or a slice, not {part!r:.60}"
            )
        if not kind.sequence:
            raise UsageError(f"{self.path}: {key!r} is not a sequence; its mask must be True or False")
        return _Wanted(key, position, kind, decode, part)

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
            return self.read([as_number(index, f"{self.path}: row numbers")], mask)[0]
        rows = self.read(index, mask)
        return {want.key: [row[want.key] for row in rows] for want in self._wanted(mask)}

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
