"""Makes the tree of a listed folder: leaves out what cannot be packed, finds hard links, numbers the records."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fffs.base.numbers import isin, unique
from fffs.files.inodes import digest
from fffs.packing.listing import Listing, UInt32Array
from fffs.packing.mtimes import nearest_mtime
from fffs.packing.numbering import Named, arrange
from fffs.packing.source_folder import SourceFolder
from fffs.tree.tree import Tree

KINDS = {stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}
# Where inode numbers are not reliable: the most files with equal status that a further name is compared with.
ALIKE = 16
_SECOND = 10**9
# The seconds, since 1970, of the times that a tree can hold in any case.
_SECONDS = (2**63 - 1) // _SECOND - 1

Array = npt.NDArray[Any]


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
        for entry in np.flatnonzero(statuses["error"]).tolist():
            error = -int(statuses["error"][entry])
            self._source.fail(OSError(error, os.strerror(error)), self._listing.path(entry + 1))
            statuses["mode"][entry] = 0
        self._leave_out()
        self._owners = self._find_owners()
        return self._arranged()

    def run_without(self, entries: UInt32Array) -> Arranged:
        """As ``run``, later, without some files, under all of their names. entries: as in the result of ``run``."""
        self._statuses["mode"][isin(self._owners, entries)] = 0
        self._warn = lambda _: None  # of the others, it has warned
        return self._arranged()

    def _arranged(self) -> Arranged:
        listing, statuses, owners = self._listing, self._statuses, self._owners
        mode, modes = int(self._root["mode"][0]), statuses["mode"]
        named = Named(mode, self._parents, owners, modes, listing.name_offsets, listing.names, listing.targets)
        tree, entries = arrange(named, self._mtimes, self._spans, self._source.shown(b""))
        return Arranged(tree, entries, statuses["size"][entries])

    def _spans(self, links: UInt32Array) -> tuple[Array, Array]:
        """Return where the targets of symbolic links begin, and their lengths."""
        lengths = self._statuses["target"]
        return (np.cumsum(lengths, dtype=np.int64) - lengths)[links], lengths[links]

    def _leave_out(self) -> None:
        """Leave out what is neither a file, a folder nor a symbolic link."""
        kinds = self._statuses["mode"] & 0o170000
        for entry in np.flatnonzero(isin(kinds, list(KINDS))).tolist():
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
        reliable = isin(devices, np.array([device for device, known in self._numbered.items() if known], devices.dtype))
        # Something on another file system than its folder is a mount point, whose numbers were not examined.
        above = np.concatenate([self._root["device"], devices])[self._parents]
        reliable &= devices == above
        kinds = statuses["mode"] & 0o170000
        linked = (statuses["links"] > 1) & ((kinds == stat.S_IFREG) | (kinds == stat.S_IFLNK))
        numbered = np.flatnonzero(linked & reliable)
        _, first, group = unique(statuses[["device", "inode"]][numbered], return_index=True, return_inverse=True)
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
