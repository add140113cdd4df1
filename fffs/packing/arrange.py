"""Makes the tree of a listed folder: leaves out what cannot be packed, finds hard links, numbers the records."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fffs.errors import MetadataError, UnsupportedError
from fffs.files.inodes import digest
from fffs.native import ffi, lib
from fffs.packing.listing import Listing, UInt32Array
from fffs.packing.mtimes import nearest_mtime
from fffs.packing.source_folder import SourceFolder
from fffs.tree.builder import build_tree
from fffs.tree.tree import Tree

KINDS = {stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}
# Where inode numbers are not reliable: the most files with equal status that a further name is compared with.
ALIKE = 16
PIECE = 1 << 16  # targets of links that are moved at a time
_SECOND = 10**9
# The seconds, since 1970, of the times that a tree can hold in any case.
_SECONDS = (2**63 - 1) // _SECOND - 1

Array = npt.NDArray[Any]


@contextlib.contextmanager
def packable(shown: str) -> Iterator[None]:
    """Raise UnsupportedError if the block finds that names form no tree. shown: what is packed, for the message."""
    try:
        yield
    except MetadataError as error:
        raise UnsupportedError(f"{shown}: cannot be packed: {error}") from error


class Arranged(NamedTuple):
    """The tree, and of the file that becomes record k, its entry in the listing and its size in bytes."""

    tree: Tree
    entries: UInt32Array
    sizes: npt.NDArray[np.int64]


class Arranger:
    """Makes the tree of a complete listing, whose statuses it changes: an inode number of 0 means an unreliable one."""

    def __init__(
        self,
        listing: Listing,
        root: Array,
        numbered: dict[int, bool],
        source: SourceFolder,
        warn: Callable[[str], None],
    ) -> None:
        """root: the status of the folder. numbered: for each device, whether its inode numbers are reliable."""
        self._listing, self._root, self._numbered, self._source, self._warn = listing, root, numbered, source, warn
        self._statuses, self._parents = listing.statuses, listing.parents
        self._contents: dict[int, bytes] = {}  # entry -> _content(), where inode numbers are not reliable

    def run(self) -> Arranged:
        """Return the tree.

        Raises:
            ReadError, SourceChangedError: a status could not be had. UnsupportedError: the names form no tree.

        """
        statuses = self._statuses
        for entry in np.flatnonzero(statuses["error"])[:1].tolist():
            error = -int(statuses["error"][entry])
            raise self._source.failure(OSError(error, os.strerror(error)), self._listing.path(entry + 1))
        self._leave_out()
        owners = self._find_owners()
        tree, files = self._build(owners)
        return self._number_records(tree, files)

    def _leave_out(self) -> None:
        """Leave out what is neither a file, a folder nor a symbolic link."""
        kinds = self._statuses["mode"] & 0o170000
        for entry in np.flatnonzero(np.isin(kinds, list(KINDS))).tolist():
            self._warn(f"{self._shown(entry)}: a {KINDS[int(kinds[entry])]}, left out")
            self._statuses["mode"][entry] = 0

    def _shown(self, entry: int) -> str:
        return self._source.shown(self._listing.path(entry + 1))

    # ------------------------------------------------------------ hard links

    def _find_owners(self) -> UInt32Array:
        """Return for each entry the entry whose node it has: an earlier one for a further name of a file."""
        statuses = self._statuses
        owners = np.arange(len(statuses), dtype=np.uint32)
        devices = statuses["device"]
        reliable = np.isin(devices, [device for device, known in self._numbered.items() if known])
        # Something on another file system than its folder is a mount point, whose numbers were not examined.
        above = np.concatenate([self._root["device"], devices])[self._parents]
        reliable &= devices == above
        kinds = statuses["mode"] & 0o170000
        linked = (statuses["links"] > 1) & ((kinds == stat.S_IFREG) | (kinds == stat.S_IFLNK))
        numbered = np.flatnonzero(linked & reliable)
        _, first, group = np.unique(statuses[["device", "inode"]][numbered], return_index=True, return_inverse=True)
        owners[numbered] = numbered[first][group.ravel()]
        alike: dict[tuple[Any, ...], list[int]] = {}
        for entry in np.flatnonzero(linked & ~reliable).tolist():
            others = alike.setdefault(tuple(statuses[entry].tolist()), [])
            content = self._content(entry) if others else b""
            owner = next((other for other in others if content and self._content(other) == content), entry)
            owners[entry] = owner
            if owner == entry and len(others) < ALIKE:
                others.append(entry)
        statuses["inode"][~reliable] = 0
        return owners

    def _content(self, entry: int) -> bytes:
        """Return a digest of a file, or the target of a symbolic link; b"" if it cannot be read. Where the file system
        makes up inode numbers, two names of one file must have equal content: number, size and times are not enough.
        """
        if entry not in self._contents:
            folder, name = os.path.split(self._listing.path(entry + 1))
            try:
                with self._source.ways.at(folder) as dir_fd:
                    if stat.S_ISLNK(int(self._statuses["mode"][entry])):
                        self._contents[entry] = os.readlink(name, dir_fd=dir_fd)
                    else:
                        self._contents[entry] = digest(dir_fd, name)
            except OSError:
                return b""
        return self._contents[entry]

    # ------------------------------------------------------------ the tree

    def _build(self, owners: UInt32Array) -> tuple[Tree, UInt32Array]:
        """Return a tree whose files refer to rows of the second result, their entries."""
        listing, statuses = self._listing, self._statuses
        kept = statuses["mode"] != 0
        own = np.flatnonzero(kept & (owners == np.arange(len(owners), dtype=np.uint32))).astype(np.uint32)
        numbers = np.zeros(len(owners) + 1, np.uint32)  # from a node of the listing to one of the tree
        numbers[own + 1] = np.arange(1, len(own) + 1, dtype=np.uint32)
        numbers[1:] = numbers[owners + 1]
        parents, nodes = numbers[self._parents[kept]], numbers[1:][kept]
        del numbers  # such arrays have a row for each of millions of files
        mode = np.concatenate([self._root["mode"], statuses["mode"][own]]).astype(np.uint16)
        kinds = mode[1:] & 0o170000
        regular, links = kinds == stat.S_IFREG, np.flatnonzero(kinds == stat.S_IFLNK)
        files = own[regular]
        ref, count = np.zeros(len(mode), np.uint32), np.zeros(len(mode), np.uint32)
        ref[1:][regular] = np.arange(len(files))
        if len(links):
            lengths = statuses["target"]
            ref[1 + links] = (np.cumsum(lengths, dtype=np.int64) - lengths)[own[links]]
            count[1 + links] = lengths[own[links]]
        offsets, names = listing.name_offsets, listing.names
        if not kept.all():
            sizes = np.diff(offsets)
            names = names[np.repeat(kept, sizes)]
            offsets = np.concatenate([[0], np.cumsum(sizes[kept])]).astype(np.uint32)
        shown = self._source.shown(b"")
        with packable(shown):
            tree = build_tree(
                parents=parents,
                nodes=nodes,
                name_offsets=offsets,
                names=names,
                mode=mode,
                mtime=self._mtimes(own),
                ref=ref,
                count=count,
                targets=listing.targets,
                records=len(files),
                source=shown,
            )
        return tree, files

    def _mtimes(self, own: Array) -> npt.NDArray[np.int64]:
        """Return the times of the nodes in nanoseconds, limited to what 64 bits can hold."""
        seconds, nanoseconds = (np.concatenate([self._root[f], self._statuses[f][own]]) for f in ("mtime", "mtime_ns"))
        extreme = np.flatnonzero((seconds > _SECONDS) | (seconds < -_SECONDS)).tolist()
        exact = [int(seconds[node]) * _SECOND + int(nanoseconds[node]) for node in extreme]
        seconds[extreme] = 0
        seconds *= _SECOND
        seconds += nanoseconds
        for node, time in zip(extreme, exact, strict=True):
            entry = int(own[node - 1]) if node else -1
            seconds[node] = nearest_mtime(time, lambda entry=entry: self._shown(entry), self._warn)  # type: ignore[misc]
        return seconds

    def _number_records(self, tree: Tree, files: UInt32Array) -> Arranged:
        """Number records, and put the targets of links, in the order of the nodes, depth first."""
        nodes, count = np.empty(len(tree.mode), np.uint32), ffi.new("uint64_t *")
        if lib.fffs_tree_leaves(tree.native, ffi.cast("uint32_t *", nodes.ctypes.data), count) != 0:
            raise MemoryError("not enough memory to number the records")
        nodes = nodes[: count[0]]
        regular = tree.kinds[nodes] == stat.S_IFREG
        leaves, links = nodes[regular], nodes[~regular]
        entries = files[tree.ref[leaves]]
        ref = tree.ref.copy()
        ref[leaves] = np.arange(len(leaves), dtype=np.uint32)
        lengths = tree.count[links].astype(np.int64)
        starts = np.cumsum(lengths) - lengths
        targets = np.empty(int(lengths.sum()), np.uint8)
        for at in range(0, len(links), PIECE):
            part = slice(at, at + PIECE)
            size = int(lengths[part].sum())
            begin = int(starts[at])
            moved = np.repeat(tree.ref[links[part]].astype(np.int64) - starts[part], lengths[part])
            targets[begin : begin + size] = tree.targets[moved + np.arange(begin, begin + size)]
        ref[links] = starts
        return Arranged(replace(tree, ref=ref, targets=targets), entries, self._statuses["size"][entries])
