"""Tree: an immutable namespace in flat arrays, which the mount, PackedFolder and the command line use.

*Entries* are names in directories; the entries of a directory are contiguous and sorted by bytes. *Nodes* are what they
refer to: directories (node 0 is the root), files, and symbolic links. Hard links are several entries of one node. A
lookup is a binary search and a listing a slice, so a mount keeps no state for the kernel's inodes.
"""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fffs.errors import EntryNotFoundError, MetadataError
from fffs.native import ffi, lib

ROOT = 0
NAME_MAX = int(lib.FFFS_NAME_MAX)

UInt8Array = npt.NDArray[np.uint8]
UInt16Array = npt.NDArray[np.uint16]
UInt32Array = npt.NDArray[np.uint32]
Int64Array = npt.NDArray[np.int64]

# The names and dtypes of the arrays, in this class, in the C struct and in the trailer.
COLUMNS: dict[str, type[np.generic]] = {
    "mtime": np.int64,
    "nlink": np.uint32,
    "ref": np.uint32,
    "count": np.uint32,
    "parent": np.uint32,
    "mode": np.uint16,
    "name_offsets": np.uint32,
    "entry_nodes": np.uint32,
    "names": np.uint8,
    "targets": np.uint8,
}


@dataclass(frozen=True, eq=False)
class Tree:
    """A namespace. Immutable; may be used from any thread and after fork. Owns its arrays.

    Per node: ``mtime`` (nanoseconds since 1970), ``nlink`` and ``mode`` (as in stat(2), with the type), ``ref`` (file:
    its record; directory: its first entry; symlink: offset of its target in ``targets``), ``count`` (directory: number
    of entries; symlink: length of the target), ``parent`` (directory: the one above). Per entry: ``entry_nodes``, and
    ``name_offsets`` (one more) into ``names``. ``COLUMNS`` has the dtypes.
    """

    mtime: Int64Array
    nlink: UInt32Array
    ref: UInt32Array
    count: UInt32Array
    parent: UInt32Array
    mode: UInt16Array
    name_offsets: UInt32Array
    entry_nodes: UInt32Array
    names: UInt8Array
    targets: UInt8Array
    native: Any = field(init=False, repr=False)
    _names: memoryview = field(init=False, repr=False)

    def __post_init__(self) -> None:
        struct = ffi.new("fffs_tree *")
        keep = []
        for name, dtype in COLUMNS.items():
            array = getattr(self, name)
            if array.dtype != dtype or array.ndim != 1 or not array.flags.c_contiguous:
                raise TypeError(f"{name} must be a contiguous 1-D array of {np.dtype(dtype)}")
            # Not ffi.from_buffer with a type: an empty array has no address. C does not access it.
            setattr(struct, name, ffi.cast(ffi.typeof(getattr(struct, name)), array.ctypes.data))
            keep.append(array)
        struct.nodes, struct.entries = len(self.mode), len(self.entry_nodes)
        struct.names_size, struct.targets_size = len(self.names), len(self.targets)
        object.__setattr__(self, "native", struct)
        object.__setattr__(self, "_names", memoryview(self.names))

    def __reduce__(self) -> tuple[Any, ...]:
        return Tree, tuple(getattr(self, name) for name in COLUMNS)

    # ------------------------------------------------------------ checking

    def validate(self, records: int, source: str) -> Tree:
        """Raise MetadataError unless this is a tree whose files refer to records below ``records``. Returns itself."""
        nodes, entries = len(self.mode), len(self.entry_nodes)
        per_node = (self.mtime, self.nlink, self.ref, self.count, self.parent)
        if any(len(array) != nodes for array in per_node) or len(self.name_offsets) != entries + 1:
            raise MetadataError(f"{source}: the tree's arrays do not belong together; the file is damaged")
        why, where = ffi.new("char **"), ffi.new("uint64_t *")
        status = lib.fffs_tree_validate(self.native, records, why, where)
        if status == 0:
            return self
        if why[0] == ffi.NULL:
            raise MemoryError(f"{source}: not enough memory to check the tree")
        raise MetadataError(f"{source}: the tree is damaged: {ffi.string(why[0]).decode()} (at {where[0]})")

    # ------------------------------------------------------------ nodes

    @property
    def kinds(self) -> UInt16Array:
        """The type of each node: ``stat.S_IFDIR``, ``S_IFREG`` or ``S_IFLNK``."""
        return self.mode & np.uint16(0o170000)

    def is_dir(self, node: int) -> bool:
        """Return whether the node is a directory."""
        return stat.S_ISDIR(int(self.mode[node]))

    def is_file(self, node: int) -> bool:
        """Return whether the node is a regular file."""
        return stat.S_ISREG(int(self.mode[node]))

    def is_symlink(self, node: int) -> bool:
        """Return whether the node is a symbolic link."""
        return stat.S_ISLNK(int(self.mode[node]))

    def record(self, node: int) -> int:
        """Return the number of the record with a file's bytes."""
        return int(self.ref[node])

    def target(self, node: int) -> bytes:
        """Return the target of a symbolic link."""
        start = int(self.ref[node])
        return self.targets[start : start + int(self.count[node])].tobytes()

    # ------------------------------------------------------------ names

    def name(self, entry: int) -> bytes:
        """Return the name of an entry."""
        return bytes(self._names[int(self.name_offsets[entry]) : int(self.name_offsets[entry + 1])])

    def names_of(self, first: int, last: int) -> list[str]:
        """Return the names of consecutive entries as texts, as ``os.fsdecode`` makes them."""
        offsets = self.name_offsets[first : last + 1].tolist()
        data = bytes(self._names[offsets[0] : offsets[-1]]) if offsets else b""
        bounds = itertools.pairwise(offsets)
        begin = offsets[0] if offsets else 0
        if data.isascii():  # slices of one text take a quarter of the time
            text = data.decode()
            return [text[a - begin : b - begin] for a, b in bounds]
        return [os.fsdecode(data[a - begin : b - begin]) for a, b in bounds]

    def entries(self, node: int, start: int = 0) -> Iterator[tuple[bytes, int]]:
        """Yield (name, node) for the entries of a directory in the order of their bytes, from position start on."""
        first = int(self.ref[node])
        low, high = first + start, first + int(self.count[node])
        # In slices, because a directory may have millions of entries and the caller may stop after a few.
        for begin in range(low, high, 1024):
            end = min(begin + 1024, high)
            offsets = self.name_offsets[begin : end + 1].tolist()
            nodes = self.entry_nodes[begin:end].tolist()
            for k, child in enumerate(nodes):
                yield bytes(self._names[offsets[k] : offsets[k + 1]]), child

    def lookup(self, node: int, name: bytes) -> int | None:
        """Return the node of that name in a directory, or None. A node that is not a directory has no entries."""
        found = ffi.new("uint32_t *")
        status = lib.fffs_tree_lookup(self.native, node, ffi.from_buffer(name), len(name), found)
        return int(found[0]) if status == 0 else None

    def find(self, path: bytes) -> int:
        """Return the node at a path relative to the root (``b""``), without following links.

        The path is normalised lexically. One that begins with ``/`` or contains ``..`` never exists.

        Raises:
            EntryNotFoundError: there is no such path.

        """
        node: int | None = None if path.startswith(b"/") else ROOT
        for part in path.split(b"/"):
            if part not in (b"", b".") and node is not None:
                node = self.lookup(node, part)
        if node is None:
            raise EntryNotFoundError(f"{os.fsdecode(path)!r}: no such file or folder in the pack")
        return node

    def has(self, path: bytes) -> bool:
        """Return whether ``find`` finds a node at path."""
        try:
            self.find(path)
        except EntryNotFoundError:
            return False
        return True

    def follow(self, path: bytes) -> int | None:
        """Return the node at a path, following symbolic links inside the tree, or None if there is none.

        Links that are absolute, leave the tree, form a loop, or have a very long target are dangling.
        """
        found = ffi.new("uint32_t *")
        status = lib.fffs_tree_follow(self.native, ffi.from_buffer(path), len(path), found)
        return int(found[0]) if status == 0 else None

    def locate(self, path: bytes) -> int | None:
        """Return the node at a path as lstat(2) does: links are followed in the path, but not the last one."""
        above, _, name = b"/".join(part for part in path.split(b"/") if part not in (b"", b".")).rpartition(b"/")
        folder = None if path.startswith(b"/") else self.follow(above)
        return folder if folder is None or not name else self.lookup(folder, name)

    def prefix(self, directory: int) -> bytes:
        """Return the path of a directory with a slash at its end; empty for the root."""
        parts: list[bytes] = []
        while directory != ROOT:
            above = int(self.parent[directory])
            begin = int(self.ref[above])
            inner = self.entry_nodes[begin : begin + int(self.count[above])]
            parts.append(self.name(begin + int(np.argmax(inner == directory))) + b"/")
            directory = above
        return b"".join(reversed(parts))

    def walk(self, node: int = ROOT) -> Iterator[tuple[bytes, int]]:
        """Yield (path relative to node, node) for everything below a directory, in pre-order, names sorted by bytes."""
        stack = [(b"", self.entries(node))]
        while stack:
            prefix, entries = stack[-1]
            for name, child in entries:
                path = prefix + name
                yield path, child
                if self.is_dir(child):
                    stack.append((path + b"/", self.entries(child)))
                    break
            else:
                stack.pop()
