"""Listing: names and status of everything in some folders, in native columns that grow by a folder at a time."""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Callable
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

# The fields of fffs_child.
CHILD = np.dtype(
    [
        ("scan", np.uintp),
        ("status", STATUS),
        ("entries", np.uint64),
        ("folders", np.uint64),
        ("names_size", np.uint64),
        ("failures", np.uint64),
    ]
)
assert CHILD.itemsize == ffi.sizeof("fffs_child")

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


class WalkColumns(NamedTuple):
    """Columns of a walk, one item for each name, as of fffs_walk_columns."""

    weights: Int64Array
    sizes: Int64Array
    depths: Int64Array
    digests: UInt64Array
    cuts: npt.NDArray[np.uint8]

    def part(self, begin: int, stop: int) -> WalkColumns:
        """Return the names from ``begin`` on, and before ``stop``."""
        some = slice(begin, stop)
        return WalkColumns(self.weights[some], self.sizes[some], self.depths[some], self.digests[some], self.cuts[some])


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
        self.scan = ffi.gc(scan, lib.fffs_scan_free)
        self.columns: Any = lib.fffs_scan_get(self.scan)
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
        result = lib.fffs_scan_folder(self.scan, fd, node, wanted, ffi.cast("fffs_status *", status.ctypes.data))
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
        lib.fffs_scan_digest(self.scan, first, len(self), folder, *pointers)
        return paths, all_

    def weigh(self, each: int) -> Weighed:
        """Return what all entries weigh. each: what the name of one adds to its size, in bytes."""
        count = len(self)
        sizes, weights, folders = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.uint32)
        found = ffi.new("fffs_weighed *")
        pointers = [ffi.cast("int64_t *", array.ctypes.data) for array in (sizes, weights)]
        lib.fffs_scan_weigh(self.scan, each, *pointers, ffi.cast("uint32_t *", folders.ctypes.data), found)
        return Weighed(sizes, weights, folders[: found.folders].tolist(), int(found.failures))

    def next_folder(self, start: int, end: int) -> int:
        """Return the first entry from ``start`` on that is a folder, or ``end``."""
        return int(lib.fffs_scan_next_folder(self.scan, start, end))

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


class Children:
    """Folders in a folder, each listed by itself."""

    def __init__(self, parent: Listing, entries: list[int], fd: int | None) -> None:
        """List some of the entries of a complete listing. Threads may do so at once with one parent.

        fd: the folder that they are in; None: it could not be opened, so none of them can be listed.
        """
        self._parent, self._entries = parent, np.array(entries, np.uint32)
        self.facts: npt.NDArray[Any] = np.zeros(len(entries), CHILD)
        pointer = ffi.cast("fffs_child *", self.facts.ctypes.data)
        self.array: Any = ffi.gc(pointer, functools.partial(_free_children, self.facts))
        """The same memory for C."""
        if fd is not None:
            numbers = ffi.cast("uint32_t *", self._entries.ctypes.data)
            lib.fffs_scan_children(parent.scan, numbers, len(entries), fd, self.array)

    def __len__(self) -> int:
        return len(self.facts)

    def take(self, k: int) -> tuple[Listing | None, npt.NDArray[Any]]:
        """Return the listing of folder k, which can be taken once, and its own status: STATUS[1].

        The listing is None if ``Listing.add`` fails.
        """
        child = self.array[k]
        scan, child.scan = child.scan, ffi.NULL
        return Listing(scan) if scan else None, self.facts["status"][k : k + 1].copy()

    def walk(
        self, part: slice, digests: tuple[UInt64Array, UInt64Array], each: int, prefix: bytes
    ) -> tuple[WalkColumns, Callable[[int], bytes]]:
        """Return columns of some leaves, each folder before its entries, and a function for their paths.

        Args:
            part: the folders.
            digests: of their paths, and of themselves.
            each: what a name adds to its size, in bytes.
            prefix: what their names follow in their paths.

        """
        facts, folders = self.facts[part], self._entries[part]
        count = int(facts["entries"].sum()) + len(folders)
        offsets = self._parent.name_offsets
        name_sizes = offsets[folders + 1] - offsets[folders]
        room = int((facts["names_size"] + name_sizes + facts["entries"] * (name_sizes + 1)).sum())
        weights, sizes, depths = (np.empty(count, np.int64) for _ in range(3))
        found = WalkColumns(weights, sizes, depths, np.empty(count, np.uint64), np.empty(count, np.uint8))
        paths, ends = np.empty(room, np.uint8), np.zeros(count + 1, np.int64)
        out = ffi.new("fffs_walk_columns *", [ffi.cast("void *", a.ctypes.data) for a in (*found, paths, ends[1:])])
        given = [ffi.cast("uint64_t *", column.ctypes.data) for column in digests]
        entries = ffi.cast("uint32_t *", folders.ctypes.data)
        children, depth = self.array + part.start, prefix.count(b"/")
        lib.fffs_scan_walk(self._parent.scan, entries, children, len(folders), *given, each, depth, out)
        return found, _names(prefix, paths.tobytes(), ends.data)


def _names(prefix: bytes, names: bytes, ends: memoryview) -> Callable[[int], bytes]:
    return lambda k: prefix + names[ends[k] : ends[k + 1]]


def _free_children(facts: npt.NDArray[Any], _: Any) -> None:
    for scan in facts["scan"].tolist():
        lib.fffs_scan_free(ffi.cast("fffs_scan *", scan))
