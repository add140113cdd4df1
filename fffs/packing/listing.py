"""Listing: names and status of everything in some folders, in native columns that grow by a folder at a time."""

from __future__ import annotations

import errno
import os
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from fffs.errors import UnsupportedError
from fffs.native import ffi, lib
from fffs.records.index import Int64Array
from fffs.tree.builder import MORE_NAMES

# The fields of fffs_status.
STATUS = np.dtype(
    [
        ("mtime", np.int64),
        ("ctime", np.int64),
        ("mtime_ns", np.uint32),
        ("ctime_ns", np.uint32),
        ("device", np.uint64),
        ("inode", np.uint64),
        ("size", np.int64),
        ("mode", np.uint32),
        ("links", np.uint32),
        ("target", np.uint32),
        ("error", np.int32),
    ]
)
assert STATUS.itemsize == ffi.sizeof("fffs_status")

UInt32Array = npt.NDArray[np.uint32]
UInt64Array = npt.NDArray[np.uint64]

NameRange = tuple[bytes, bytes]
"""The first name, and the one before which the range ends; b"": it does not."""
ALL: Final = (b"", b"")


class Weighed(NamedTuple):
    """What the entries of a listing weigh."""

    sizes: Int64Array  # of files, in bytes
    weights: Int64Array  # the same, and what their names add
    folders: list[int]  # the entries that are folders
    failures: int  # entries whose status has an error


class Listing:
    """Entries of folders. The root is node 0, and entry e is node e + 1. Used by one thread until it is complete.

    Raises:
        MemoryError: from every method that adds entries.

    """

    def __init__(self, scan: Any = None) -> None:
        """scan: of C, which is owned from now on; None: a new one."""
        if scan is None:
            made = ffi.new("fffs_scan **")
            if lib.fffs_scan_new(made) != 0:
                raise MemoryError("not enough memory to list a folder")
            scan = made[0]
        self._scan = ffi.gc(scan, lib.fffs_scan_free)
        self.columns: Any = lib.fffs_scan_get(self._scan)
        """The arrays for C. They move when a folder is added."""

    def __len__(self) -> int:
        return int(self.columns.entries)

    def add(self, fd: int, node: int, shown: str, names: NameRange = ALL) -> npt.NDArray[Any]:
        """Add the entries of an open folder, sorted by their names, and return its status: STATUS[1].

        names: the only ones that are added.

        Raises:
            OSError: the folder cannot be read. UnsupportedError: a tree cannot hold so many names.

        """
        status = np.zeros(1, STATUS)
        first, stop = (ffi.from_buffer("uint8_t[]", name) for name in names)
        wanted = ffi.new("fffs_name_range *", (first, stop, len(first), len(stop)))
        result = lib.fffs_scan_folder(self._scan, fd, node, wanted, ffi.cast("fffs_status *", status.ctypes.data))
        if result == -errno.ENOMEM:
            raise MemoryError("not enough memory to list a folder")
        if result == -errno.EOVERFLOW:
            raise UnsupportedError(f"{shown}: {MORE_NAMES}")
        if result != 0:
            raise OSError(-result, os.strerror(-result))
        if node:
            self.statuses[node - 1] = status[0]
        return status

    def digests(self, first: int, folder: int) -> tuple[UInt64Array, UInt64Array]:
        """Return digests of the paths of all entries from ``first`` on, and of their paths, modes, times and sizes.

        folder: the digest of the path of the folder that all of them are in.
        """
        paths, all_ = np.empty(len(self) - first, np.uint64), np.empty(len(self) - first, np.uint64)
        pointers = [ffi.cast("uint64_t *", array.ctypes.data) for array in (paths, all_)]
        lib.fffs_scan_digest(self._scan, first, len(self), folder, *pointers)
        return paths, all_

    def children(self, entries: list[int], fd: int) -> tuple[list[Listing | None], npt.NDArray[Any]]:
        """List some of the entries, which are folders, each by itself. Threads may do so at once in a complete listing.

        Args:
            entries: the folders.
            fd: the open folder that they are in.

        Returns:
            Their listings, of which each is None that ``add`` fails for; and the folders' own statuses.

        """
        scans, statuses = ffi.new("fffs_scan *[]", len(entries)), np.zeros(len(entries), STATUS)
        found = ffi.cast("fffs_status *", statuses.ctypes.data)
        lib.fffs_scan_children(self._scan, ffi.new("uint32_t[]", entries), len(entries), fd, scans, found)
        return [Listing(scan) if scan else None for scan in scans], statuses

    def weigh(self, each: int) -> Weighed:
        """Return what all entries weigh. each: what the name of one adds to its size, in bytes."""
        count = len(self)
        sizes, weights, folders = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.uint32)
        found = ffi.new("fffs_weighed *")
        pointers = [ffi.cast("int64_t *", array.ctypes.data) for array in (sizes, weights)]
        lib.fffs_scan_weigh(self._scan, each, *pointers, ffi.cast("uint32_t *", folders.ctypes.data), found)
        return Weighed(sizes, weights, folders[: found.folders].tolist(), int(found.failures))

    def next_folder(self, start: int, end: int) -> int:
        """Return the first entry from ``start`` on that is a folder, or ``end``."""
        return int(lib.fffs_scan_next_folder(self._scan, start, end))

    def _array(self, pointer: Any, count: int, dtype: Any) -> npt.NDArray[Any]:
        size = count * np.dtype(dtype).itemsize
        return np.frombuffer(ffi.buffer(pointer, size), dtype) if size else np.empty(0, dtype)

    @property
    def statuses(self) -> npt.NDArray[Any]:
        """STATUS[entries], which may be changed. A mode of 0 means that the entry is left out. Valid until ``add``."""
        return self._array(self.columns.statuses, len(self), STATUS)

    @property
    def parents(self) -> UInt32Array:
        """The node of the folder of each entry. Valid until ``add``, as the other arrays."""
        return self._array(self.columns.parents, len(self), np.uint32)

    @property
    def name_offsets(self) -> UInt32Array:
        """Where each name begins in ``names``, and its end."""
        return self._array(self.columns.name_offsets, len(self) + 1, np.uint32)

    @property
    def names(self) -> npt.NDArray[np.uint8]:
        """All names, one after the other."""
        return self._array(self.columns.names, int(self.columns.name_offsets[len(self)]), np.uint8)

    @property
    def targets(self) -> npt.NDArray[np.uint8]:
        """The targets of the symbolic links, in the order of their entries."""
        return self._array(self.columns.targets, int(self.columns.targets_size), np.uint8)

    def name(self, entry: int) -> bytes:
        """Return the name of an entry."""
        begin, end = self.columns.name_offsets[entry], self.columns.name_offsets[entry + 1]
        return bytes(ffi.buffer(self.columns.names + begin, end - begin))

    def path(self, node: int) -> bytes:
        """Return the path of a node from the root."""
        parts: list[bytes] = []
        while node:
            parts.append(self.name(node - 1))
            node = int(self.columns.parents[node - 1])
        return b"/".join(reversed(parts))
