"""survey: walks a folder, with a few listed folders at a time in memory, and divides it into parts."""

from __future__ import annotations

import os
import stat
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np

from fffs.files.dirfd import Way
from fffs.packing.division import SLICE, CutPlace, Division, NamedRun
from fffs.packing.listing import STATUS, Listing, UInt64Array
from fffs.packing.pack_file import TREE_BYTES
from fffs.packing.scan import ROOT_DIGEST, digest_of_root, refuse_long_paths
from fffs.packing.source_folder import SourceFolder
from fffs.records.index import Int64Array

LISTERS: Final = 4  # threads; on a file system of a network, each waits most of the time
SLOW: Final = 0.0005  # seconds for a folder; threads take longer than they save if it takes less
AHEAD: Final = 200_000  # names that may be in memory before they are needed


@dataclass
class _Listed:
    """A listed folder. ``next``: its first entry that was not added yet."""

    path: bytes
    status: np.ndarray  # its own
    listing: Listing
    weights: Int64Array
    sizes: Int64Array
    paths: UInt64Array
    digests: UInt64Array
    next: int = 0

    def path_of(self, entry: int) -> bytes:
        """Return the path of an entry."""
        return os.path.join(self.path, self.listing.name(entry))

    def entries(self, stop: int) -> NamedRun:
        """Return the entries from the next one on."""
        part, first = slice(self.next, stop), self.next
        prefix = self.path + b"/" if self.path else b""
        columns = self.weights[part], self.sizes[part], self.digests[part]
        depths = np.broadcast_to(np.int64(prefix.count(b"/")), stop - first)
        return NamedRun(self._paths(prefix, first, stop), depths, *columns)

    def _paths(self, prefix: bytes, first: int, stop: int) -> Callable[[int], bytes]:
        """Return a function for the paths of entries from the first on."""
        if stop - first > SLICE:  # few of them are asked for
            return lambda k: prefix + self.listing.name(first + k)
        ends = self.listing.name_offsets[first : stop + 1]
        names = self.listing.names[ends[0] : ends[-1]].tobytes()
        at = (ends - ends[0]).tolist()
        return lambda k: prefix + names[at[k] : at[k + 1]]


def survey(source: SourceFolder, parts: int) -> list[CutPlace]:
    """Walk a folder and return where its parts begin, and the end. The same folder gives the same parts.

    A part is as heavy as its files, with TREE_BYTES for each name: about as large as its pack. Several threads list the
    folders that come next.

    Raises:
        ReadError, SourceChangedError, UnsupportedError: as ``scan_folder``.

    """
    division = Division(parts)
    with ThreadPoolExecutor(LISTERS) as pool, Way(source.fd) as way:
        try:
            _walk(_Lister(source, way, pool), division)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return division.cut()


def _walk(lister: _Lister, division: Division) -> None:
    root = lister.list(b"", ROOT_DIGEST)
    division.add_folder(b"", TREE_BYTES, digest_of_root(root.status), is_first=True)
    stack = [_Siblings(root, lister)]
    while stack:
        folder, count = stack[-1].folder, len(stack[-1].folder.listing)
        entry = folder.listing.next_folder(folder.next, count)
        if entry > folder.next:
            division.add(folder.entries(entry), is_first=folder.next == 0)
        if entry == count:
            stack.pop()
            continue
        division.add_folder(folder.path_of(entry), TREE_BYTES, int(folder.digests[entry]), is_first=entry == 0)
        folder.next = entry + 1
        stack.append(_Siblings(stack[-1].list(entry), lister))


@dataclass(frozen=True)
class _Lister:
    """Lists folders, in this thread and in others."""

    source: SourceFolder
    way: Way
    pool: ThreadPoolExecutor

    def list(self, path: bytes, digest: int) -> _Listed:
        """List a folder in this thread. digest: of its path."""
        return _list(self.source, self.way.go, path, digest)

    def submit(self, path: bytes, digest: int) -> Future[_Listed]:
        """List a folder in another thread."""
        return self.pool.submit(self._list_elsewhere, path, digest)

    def _list_elsewhere(self, path: bytes, digest: int) -> _Listed:
        with self.source.ways.one() as way:
            return _list(self.source, way.go, path, digest)


class _Siblings:
    """Lists the folders in a folder: the one that is wanted, and meanwhile some of those that follow it."""

    def __init__(self, folder: _Listed, lister: _Lister) -> None:
        self.folder, self._lister = folder, lister
        self._ahead: deque[Future[_Listed]] = deque()
        self._next = 0  # entries before this one are listed, or are being listed
        self._largest = 1  # entries of one of them
        self._slow = False  # whether listing one took long

    def list(self, entry: int) -> _Listed:
        """List the folder that is an entry; call this for each of them in turn."""
        if self._slow:
            wanted = self._ahead.popleft() if self._ahead else None
            self._list_ahead(max(self._next, entry + 1))
            found = wanted.result() if wanted else self._lister.list(*self._place(entry))
        else:
            begin = time.perf_counter()
            found = self._lister.list(*self._place(entry))
            self._slow = time.perf_counter() - begin > SLOW
        self._largest = max(self._largest, len(found.listing))
        return found

    def _list_ahead(self, entry: int) -> None:
        """Begin to list some folders from this entry on."""
        count = len(self.folder.listing)
        while entry < count and len(self._ahead) < min(max(AHEAD // self._largest, 1), 2 * LISTERS):
            entry = self.folder.listing.next_folder(entry, count)
            if entry < count:
                self._ahead.append(self._lister.submit(*self._place(entry)))
                entry += 1
        self._next = entry

    def _place(self, entry: int) -> tuple[bytes, int]:
        return self.folder.path_of(entry), int(self.folder.paths[entry])


def _list(source: SourceFolder, go: Callable[[bytes], int], path: bytes, digest: int) -> _Listed:
    """List a folder. go: goes to a path and returns its descriptor. digest: of its path."""
    listing, status = Listing(), np.zeros(1, STATUS)
    try:
        status = listing.add(go(path), 0, source.shown(b""))
    except OSError as error:
        source.fail(error, path)
    statuses = listing.statuses
    for entry in np.flatnonzero(statuses["error"]).tolist():
        number = -int(statuses["error"][entry])
        source.fail(OSError(number, os.strerror(number)), os.path.join(path, listing.name(entry)))
    refuse_long_paths(listing, 0, path, source)
    kinds = statuses["mode"] & 0o170000
    is_file = kinds == stat.S_IFREG
    sizes = np.where(is_file, statuses["size"], 0)
    weights = sizes + TREE_BYTES * (is_file | (kinds == stat.S_IFDIR) | (kinds == stat.S_IFLNK))
    return _Listed(path, status, listing, weights, sizes, *listing.digests(0, digest))
