"""RangeReader: ranges of records of local files, verified at the first read, for mounts.

The C store remembers which records, and which blocks of large ones, are verified; see ``native/store.c``.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Sequence
from typing import Any

from fffs.files.file import UInt8Array
from fffs.native import ffi, lib
from fffs.records.native_store import make_native_store
from fffs.records.source_file import SourceFile


class RangeReader:
    """Reads ranges. Thread-safe; may be used in a child of fork. The owner keeps the files open."""

    def __init__(self, files: Sequence[SourceFile]) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._native: Any = None
        self._keep: list[Any] = []

    @property
    def native(self) -> Any:
        """Return the C store, which the first call makes. Raises ReadError, MemoryError."""
        if self._native is None:
            with self._lock:
                if self._native is None:
                    self._native, self._keep = make_native_store(self._files)
        return self._native

    def read_into(self, record: int, start: int, dest: UInt8Array, *, check: bool, how: int) -> int:
        """Fill ``dest`` with a range, and return its size in bytes or -errno. See ``fffs_store_read``."""
        flags = (0 if check else lib.FFFS_READ_UNVERIFIED) | how
        into = ffi.from_buffer("uint8_t[]", dest, require_writable=True)
        got = int(lib.fffs_store_read(self.native, record, start, dest.size, into, flags))
        if got == -errno.ENOMEM:
            raise MemoryError("not enough memory to read a record")
        return got

    def verified(self, record: int) -> bool:
        """Whether the whole record has been verified since the file last changed."""
        return bool(lib.fffs_store_verified(self.native, record))

    def count_verified(self) -> int:
        """Return how many records that are not empty have been verified since their files last changed."""
        return int(lib.fffs_store_count_verified(self.native))

    def forget_other_threads(self) -> None:
        """In a child of fork: renew the lock. A thread that held it exists only in the parent."""
        self._lock = threading.Lock()

    def free(self) -> None:
        """Free the C store. No thread may be reading."""
        lib.fffs_store_free(self._native or ffi.NULL)
        self._native = None
        self._keep.clear()
