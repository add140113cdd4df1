"""read_each: reads ranges of many records in batches. A damaged record does not keep others from being read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from fffs.base.numbers import unique
from fffs.errors import ReadError, RecordError, SourceChangedError
from fffs.files.file import UInt8Array
from fffs.records.store import RecordStore

BATCH: Final = 256 << 20  # bytes of records in a batch
SMALL: Final = 1 << 20  # bytes of a record that is read whole, in a batch, for any range of it

Range = tuple[int, int, int]
"""A record, and the begin and end of a range in it."""

_FAILURES: Final = (RecordError, ReadError, SourceChangedError)


def read_each(store: RecordStore, ranges: Sequence[Range]) -> list[bytes | Exception]:
    """Return the bytes of ranges of records, or the exception of each that cannot be read.

    Raises:
        RecordIndexError, ClosedError.

    """
    whole = [end - begin >= store.length(record) // 2 or store.length(record) <= SMALL for record, begin, end in ranges]
    records = _read_whole(store, [record for (record, _, _), is_whole in zip(ranges, whole, strict=True) if is_whole])
    out: list[bytes | Exception] = []
    for (record, begin, end), is_whole in zip(ranges, whole, strict=True):
        if is_whole:
            data = next(records)
            out.append(data if isinstance(data, Exception) else data[begin:end].tobytes())
        else:
            out.append(_read_range(store, record, begin, end))
    return out


def _read_range(store: RecordStore, record: int, begin: int, end: int) -> bytes | Exception:
    try:
        return store.read_range(record, begin, end).tobytes()
    except _FAILURES as error:
        return error


def _read_whole(store: RecordStore, records: list[int]) -> Iterator[UInt8Array | Exception]:
    """Yield records, or their exceptions."""
    batch: list[int] = []
    size = 0
    for record in records:
        batch.append(record)
        size += store.length(record)
        if size >= BATCH:
            yield from _read_batch(store, batch)
            batch, size = [], 0
    yield from _read_batch(store, batch)


def _read_batch(store: RecordStore, records: list[int]) -> list[UInt8Array | Exception]:
    try:
        return list(store.read(records))
    except _FAILURES:
        bad = dict(store.verify(unique(records)))
        good = iter(store.read([record for record in records if record not in bad]))
        return [bad[record] if record in bad else next(good) for record in records]
