"""SmallRecords: reads small records of local files, one at a time or a run of neighbours, as bytes.

A batch costs tens of microseconds, however small it is: arrays of requests are made and filled. A record of 100 bytes
that is in memory is read, and verified, in one or two.
"""

from __future__ import annotations

import itertools
import os
from typing import Any, Final

from fffs.native import lib
from fffs.native.checksums import CHECK_NONE, checksum
from fffs.records.store import RecordStore

LARGEST: Final = 1 << 16  # bytes of a record; larger ones take long enough
RUN: Final = 1 << 22  # bytes of a run that is read at once

_NOWAIT: Final = getattr(os, "RWF_NOWAIT", 0)
_unchanged: Final = lib.fffs_unchanged


class SmallRecords:
    """Reads small records of a store, which the caller owns. Thread-safe; may be used in a child of fork.

    What is returned is verified as by ``RecordStore.read_one``; whatever is wrong with a record, that raises the error.
    """

    def __init__(self, store: RecordStore) -> None:
        self._store, self._index = store, store.index
        self._starts, self._ends, self._sums = store.index.starts, store.index.ends, store.index.checksums
        self._files = [_described(file) for file in store.files] if not store.index.truncated else []
        self._only = self._files[0] if len(self._files) == 1 else None

    def read(self, number: int) -> bytes:
        """Return a record. number: from 0, and not checked. Raises as ``RecordStore.read_one``."""
        # As in ``RecordStore.read_one``, each call and each attribute counts.
        offset = self._starts.item(number)
        length = self._ends.item(number) - offset
        fd, kind, stamp = self._only or self._file_of(number)
        if fd < 0 or length > LARGEST:
            return self._store.read_one(number).tobytes()
        store = self._store
        store.begin_use()
        try:
            data = os.pread(fd, length, offset)
            good = len(data) == length and (
                not store.policy.check
                or (
                    _unchanged(fd, stamp) == 0
                    if kind == CHECK_NONE
                    else checksum(kind, data) == self._sums.item(number)
                )
            )
        except OSError:
            good = False
        finally:
            store.end_use()
        return data if good else store.read_one(number).tobytes()

    def read_several(self, numbers: list[int]) -> list[bytes] | None:
        """Return records, or None if that would wait for a disk: a batch waits once for all of them.

        numbers: as for ``read``; several.
        """
        store, found = self._store, []
        store.begin_use()
        try:
            check = store.policy.check
            for number in numbers:
                offset = self._starts.item(number)
                length = self._ends.item(number) - offset
                fd, kind, stamp = self._only or self._file_of(number)
                if fd < 0 or length > LARGEST or not _NOWAIT:
                    return None
                room = bytearray(length)
                if length and os.preadv(fd, (room,), offset, _NOWAIT) != length:
                    return None
                if check and (
                    _unchanged(fd, stamp) if kind == CHECK_NONE else checksum(kind, room) != self._sums.item(number)
                ):
                    return None
                found.append(bytes(room))
        except OSError:  # it is not in memory, or the file system cannot tell
            return None
        finally:
            store.end_use()
        return found

    def read_run(self, first: int, stop: int) -> list[bytes] | None:
        """Return neighbouring records of a file with one read; None if these are others, too large, or a read fails.

        first, stop: numbers, as for ``read``; there is one record at least.
        """
        fd, kind, stamp = self._file_of(first)
        starts, ends = self._starts[first:stop], self._ends[first:stop]
        offset, end = starts.item(0), ends.item(-1)
        if fd < 0 or not 0 <= end - offset <= RUN or not self._are_neighbours(first, stop):
            return None
        store = self._store
        store.begin_use()
        try:
            data = os.pread(fd, end - offset, offset)
            if len(data) < end - offset or (store.policy.check and kind == CHECK_NONE and _unchanged(fd, stamp)):
                return None
            check = store.policy.check and kind != CHECK_NONE
        except OSError:
            return None
        finally:
            store.end_use()
        cuts = [offset, *ends.tolist()]
        records = [data[a - offset : b - offset] for a, b in itertools.pairwise(cuts)]
        sums = self._sums[first:stop].tolist() if check else ()
        return records if all(checksum(kind, r) == s for r, s in zip(records, sums)) else None  # noqa: B905

    def _are_neighbours(self, first: int, stop: int) -> bool:
        same = len(self._files) == 1 or self._index.file_of(first) == self._index.file_of(stop - 1)
        return same and bool((self._starts[first + 1 : stop] == self._ends[first : stop - 1]).all())

    def _file_of(self, number: int) -> tuple[int, int, Any]:
        return self._files[self._index.file_of(number)] if self._files else (-1, CHECK_NONE, None)


def _described(file: Any) -> tuple[int, int, Any]:
    """Return the descriptor of a file, or -1, its kind of checksum, and what must not change if it has none."""
    descriptor, kind = file.file.descriptor, file.index.check
    return descriptor, kind, file.stamp if descriptor >= 0 and kind == CHECK_NONE else None
