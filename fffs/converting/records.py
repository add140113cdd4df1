"""Sources of records: their lengths, and their bytes in batches of bounded size."""

from __future__ import annotations

import contextlib
from array import array
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from fffs.base.numbers import divide
from fffs.errors import SourceChangedError, UnsupportedError
from fffs.files.file import UInt8Array
from fffs.records.index import Int64Array
from fffs.records.store import RecordStore

BATCH_BYTES = 4 << 20
BATCH_RECORDS = 1 << 16
STREAM_RECORDS = 1 << 27  # the most records of a file without an index: their lengths take 1 GiB of memory


@dataclass(frozen=True)
class AdjacentRecords:
    """Adjacent records: record i is ``data[offsets[i]:offsets[i + 1]]``."""

    data: UInt8Array
    offsets: Int64Array

    def __iter__(self) -> Iterator[UInt8Array]:
        bounds = self.offsets.tolist()
        return (self.data[bounds[k] : bounds[k + 1]] for k in range(len(bounds) - 1))


Batches = Generator[AdjacentRecords, None, None]


class RecordSource(Protocol):
    """The records of a source. The caller closes it."""

    shown: str
    """The name of the source in messages."""

    @property
    def lengths(self) -> Int64Array:
        """int64[n]: the size of each record in bytes."""

    def batches(self, bounds: Sequence[int] = (), threads: int = 1) -> Batches:
        """Yield all records in order, in batches of at most BATCH_BYTES, or of one record. No batch crosses one of
        ``bounds``, the first records of parts.

        Up to ``threads`` batches are read while the caller uses one, if the source can be read in any order. The caller
        drops each batch before it asks for the next, and closes the generator. The garbage collector must not: it may
        run while a lock of ``threading`` is held, which ending the threads takes.
        """

    def close(self) -> None:
        """Close the source."""


def _read_ahead(
    read: Callable[[int, int], AdjacentRecords], lengths: Int64Array, bounds: Sequence[int], threads: int
) -> Batches:
    """Yield batches in order. They are read by threads, which start them in order.

    At most threads + 1 batches of together (threads + 1) * BATCH_BYTES are in memory; a larger batch is alone.
    """
    waiting: deque[tuple[Future[AdjacentRecords], int]] = deque()
    held, most = 0, (threads + 1) * BATCH_BYTES
    pool = ThreadPoolExecutor(threads)
    try:
        for first, last in divide(lengths, BATCH_BYTES, BATCH_RECORDS, bounds):
            size = int(lengths[first:last].sum())
            while waiting and (len(waiting) > threads or held + size > most):
                done = waiting[0][1]
                yield waiting.popleft()[0].result()  # a variable would keep it in memory while the next one is read
                held -= done
            waiting.append((pool.submit(read, first, last), size))
            held += size
        while waiting:
            yield waiting.popleft()[0].result()
    finally:
        pool.shutdown(cancel_futures=True)


class StoredRecords:
    """The records of files with an index, or some of them."""

    def __init__(self, store: RecordStore, shown: str, numbers: Int64Array | None = None) -> None:
        """store: ``close`` closes it. numbers: the records, in order; None: all."""
        self.store, self.shown = store, shown
        self.numbers = np.arange(store.n) if numbers is None else numbers
        self._lengths = store.lengths(self.numbers)

    @property
    def lengths(self) -> Int64Array:
        """As in ``RecordSource``."""
        return self._lengths

    def batches(self, bounds: Sequence[int] = (), threads: int = 1) -> Batches:
        """As in ``RecordSource``."""
        return _read_ahead(self._read, self._lengths, bounds, threads)

    def _read(self, first: int, last: int) -> AdjacentRecords:
        return AdjacentRecords(*self.store.read_joined(self.numbers[first:last]))

    def close(self) -> None:
        """Close the files."""
        self.store.close()


class StreamedRecords:
    """The records of a source that can only be read sequentially. The lengths take a pass of their own over it."""

    def __init__(
        self,
        begin: Callable[[], contextlib.AbstractContextManager[Iterator[bytes]]],
        shown: str,
        close: Callable[[], None] | None = None,
    ) -> None:
        """begin: starts a pass over all records. close: called by ``close``."""
        self._begin, self.shown, self._close = begin, shown, close
        self._lengths: Int64Array | None = None

    @property
    def lengths(self) -> Int64Array:
        """As in ``RecordSource``. The first access reads the whole source."""
        if self._lengths is None:
            found = array("q")
            with self._begin() as records:
                for record in records:
                    if len(found) == STREAM_RECORDS:
                        raise UnsupportedError(f"{self.shown}: more than {STREAM_RECORDS} records; decompress it first")
                    found.append(len(record))
            self._lengths = np.array(found, np.int64)
        return self._lengths

    def batches(self, bounds: Sequence[int] = (), threads: int = 1) -> Batches:
        """As in ``RecordSource``, but always with one thread."""
        with self._begin() as records:
            yield from _read_ahead(partial(self._take, records), self.lengths, bounds, 1)
            if next(records, None) is not None:
                raise self._changed()

    def _take(self, records: Iterator[bytes], first: int, last: int) -> AdjacentRecords:
        lengths = self.lengths[first:last]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        if last - first == 1:
            data = next(records, None)
            if data is None or len(data) != lengths[0]:
                raise self._changed()
            return AdjacentRecords(np.frombuffer(data, np.uint8), offsets)
        joined = np.empty(int(offsets[-1]), np.uint8)
        for k in range(last - first):
            data = next(records, None)
            if data is None or len(data) != lengths[k]:
                raise self._changed()
            joined[offsets[k] : offsets[k + 1]] = np.frombuffer(data, np.uint8)
        return AdjacentRecords(joined, offsets)

    def _changed(self) -> SourceChangedError:
        return SourceChangedError(f"{self.shown}: changed while it was converted; convert it when nothing writes to it")

    def close(self) -> None:
        """Close the files that stay open between two passes."""
        if self._close:
            self._close()
