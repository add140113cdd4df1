"""BatchReader: reads whole records of several files, of any kind, in one batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from fffs.base.numbers import Int64Array, distinct
from fffs.native import engine
from fffs.native.checksums import CHECK_NONE
from fffs.records.joined_index import JoinedIndex
from fffs.records.policy import ReadPolicy

Requests = npt.NDArray[Any]


class BatchReader:
    """Makes the requests for records and passes them to their files. Thread-safe."""

    def __init__(self, index: JoinedIndex) -> None:
        self._index = index
        files = [source.file for source in index.files]
        self._descriptors = np.array([file.descriptor for file in files], np.int32)
        self._checks = np.array([source.index.check for source in index.files], np.uint32)
        self._any_check = bool((self._checks != CHECK_NONE).any())
        # Filled for reads that bypass the page cache: see fffs_open_direct.
        self._direct = np.full(len(files), -1, np.int32)
        self._aligns = np.zeros(len(files), np.uint32)
        # Files that share one function for batches are read in one call.
        self._readers = list(dict.fromkeys(file.read_batch for file in files))
        self._reader_of = np.array([self._readers.index(file.read_batch) for file in files], np.int64)

    def open_direct(self) -> bool:
        """Open all files for reads that bypass the page cache. Returns False if a file cannot be read so."""
        for k, source in enumerate(self._index.files):
            if self._direct[k] < 0 and (opened := source.file.open_direct()):
                # The alignment is set first: another thread may be reading.
                self._aligns[k], self._direct[k] = opened[1], opened[0]
        return bool((self._direct >= 0).all())

    def requests(self, numbers: Int64Array, lengths: Int64Array, policy: ReadPolicy) -> Requests:
        """Return the requests for records, without destinations: ``engine.REQUEST``[k]. lengths: int64[k], in bytes."""
        index = self._index
        requests = np.zeros(len(numbers), engine.REQUEST)
        requests["offset"] = index.starts[numbers]
        requests["length"] = lengths
        rows: Any = index.files_of(numbers) if len(index.files) > 1 else 0
        requests["fd"] = self._descriptors[rows]
        if policy.direct:
            requests["align"], requests["direct_fd"] = self._aligns[rows], self._direct[rows]
        elif policy.around:
            requests["around"] = policy.around
        if policy.check and self._any_check:
            requests["check"] = self._checks[rows]
            requests["expected"] = index.checksums[numbers]
        return requests

    def read(self, requests: Requests, numbers: Int64Array) -> bool:
        """Read the records of the requests: see ``engine.read_batch``."""
        if len(self._readers) == 1:
            return self._readers[0](requests)
        good = True
        for reader, rows in self._groups(numbers):
            part = requests[rows]
            good = reader(part) and good
            requests[rows] = part
        return good

    def _groups(self, numbers: Int64Array) -> list[tuple[Callable[[Requests], bool], Int64Array]]:
        """Return the functions that read these records, each with the positions of its records in ``numbers``."""
        which = self._reader_of[self._index.files_of(numbers)]
        return [(self._readers[k], np.flatnonzero(which == k)) for k in distinct(which)]

    def prefetch(self, requests: Requests, numbers: Int64Array) -> None:
        """Start to read these records into the page cache."""
        files = self._index.files_of(numbers)
        if len(self._readers) == 1 and self._index.files:
            self._index.files[0].file.prefetch(requests)
            return
        for k in distinct(files):
            self._index.files[k].file.prefetch(requests[files == k])
