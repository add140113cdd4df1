"""survey: walks a folder, with a few listed folders at a time in memory, and divides it into parts."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from fffs.files.dirfd import PATH_MAX, Way
from fffs.packing.division import SLICE, CutPlace, Division, NamedRun, cuts_in_folder
from fffs.packing.listing import STATUS, Children, Listing, UInt64Array, WalkColumns, Weighed
from fffs.packing.pack_file import TREE_BYTES
from fffs.packing.scan import ROOT_DIGEST, digest_of_root, refuse_long_paths
from fffs.packing.source_folder import SourceFolder
from fffs.tree.tree import NAME_MAX

LISTERS: Final = 4  # threads; on a file system of a network, each waits most of the time
SLOW: Final = (
    0.0005  # seconds for a batch of folders; giving it to a thread takes longer than it saves if it takes less
)
BATCH: Final = 0.005  # seconds that a batch should take, so that threads seldom wait for each other's Python
BATCH_FOLDERS: Final = 64
AHEAD: Final = 200_000  # names that may be in memory before they are needed


@dataclass
class _Listed:
    """A listed folder. ``next``: its first entry that was not added yet."""

    path: bytes
    status: np.ndarray  # its own
    listing: Listing
    weighed: Weighed
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
        depths = np.full(stop - first, prefix.count(b"/"), np.int64)
        columns = self.weighed.weights[part], self.weighed.sizes[part], depths, self.digests[part]
        cuts = cuts_in_folder(stop - first, is_first=first == 0)
        return NamedRun(self._paths(prefix, first, stop), WalkColumns(*columns, cuts))

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
    root = lister.list_one(b"", ROOT_DIGEST)
    division.add_folder(b"", TREE_BYTES, digest_of_root(root.status), is_first=True)
    stack = [_Siblings(root, lister)]
    while stack:
        siblings = stack[-1]
        folder, entry = siblings.folder, siblings.wanted
        if entry > folder.next:
            division.add(folder.entries(entry))
            folder.next = entry
        elif entry == len(folder.listing):
            stack.pop()
        elif leaves := siblings.list_leaves():
            division.add(leaves)
        else:
            division.add_folder(folder.path_of(entry), TREE_BYTES, int(folder.digests[entry]), is_first=entry == 0)
            folder.next = entry + 1
            stack.append(_Siblings(siblings.list_wanted(), lister))


class _Batch(NamedTuple):
    """Folders that were listed together."""

    children: Children
    seconds: float


@dataclass(frozen=True)
class _Lister:
    """Lists folders, in this thread and in others."""

    source: SourceFolder
    way: Way
    pool: ThreadPoolExecutor

    def list_one(self, path: bytes, digest: int) -> _Listed:
        """List a folder in this thread. digest: of its path."""
        listing, status = Listing(), np.zeros(1, STATUS)
        try:
            status = listing.add(self.way.go(path), 0, self.source.shown(b""))
        except OSError as error:
            self.source.fail(error, path)
        return self.weigh(path, digest, listing, status)

    def list_batch(self, folder: _Listed, entries: list[int]) -> _Batch:
        """List some of the folders in a folder. Thread-safe."""
        begin = time.perf_counter()
        with self.source.ways.one() as way:
            try:
                fd = way.go(folder.path)
            except OSError:  # listing the first of them fails for the same reason
                return _Batch(Children(folder.listing, entries, None), 0)
            children = Children(folder.listing, entries, fd)
        return _Batch(children, time.perf_counter() - begin)

    def weigh(self, path: bytes, digest: int, listing: Listing, status: np.ndarray) -> _Listed:
        """Return a folder with its weights. Raises an error for an entry without status, if that is not left out."""
        weighed = listing.weigh(TREE_BYTES)
        if weighed.failures:
            self._fail(path, listing.statuses["error"], listing)
        refuse_long_paths(listing, 0, path, self.source)
        return _Listed(path, status, listing, weighed, *listing.digests(0, digest))

    def _fail(self, path: bytes, errors: np.ndarray, listing: Listing) -> None:
        for entry in np.flatnonzero(errors).tolist():
            number = -int(errors[entry])
            self.source.fail(OSError(number, os.strerror(number)), os.path.join(path, listing.name(entry)))


class _Siblings:
    """Lists the folders in a folder, in batches: the one that is wanted, and meanwhile some of those that follow it.

    One native call lists a batch: with a call for each folder, threads would take turns at Python's lock.
    """

    def __init__(self, folder: _Listed, lister: _Lister) -> None:
        self.folder, self._lister = folder, lister
        self._entries = folder.weighed.folders
        self._wanted = self._asked = 0  # of the entries: the next one, and the next that no batch has
        self._batch, self._begin = Children(folder.listing, [], None), 0  # the entries from ``begin`` on
        self._leaves: npt.NDArray[np.bool_] = np.empty(0, bool)  # whether a folder of the batch has no folder in it
        self._ahead: deque[Future[_Batch]] = deque()
        self._largest = 1  # names in one of them
        self._seconds = BATCH  # for one of them

    @property
    def wanted(self) -> int:
        """The next folder, or behind all entries."""
        return self._entries[self._wanted] if self._wanted < len(self._entries) else len(self.folder.listing)

    def list_wanted(self) -> _Listed:
        """List the folder that is wanted, which is the one behind it then."""
        self._need_batch()
        entry = self.wanted
        path, digest = self.folder.path_of(entry), int(self.folder.paths[entry])
        listing, status = self._batch.take(self._wanted - self._begin)
        self._wanted += 1
        if listing is None:
            return self._lister.list_one(path, digest)
        return self._lister.weigh(path, digest, listing, status)

    def list_leaves(self) -> NamedRun | None:
        """List the folders from the one that is wanted on that follow each other directly, with their entries.

        Returns None if there is something to see to: a folder in the first one, an error or a long path.
        """
        self._need_batch()
        first, stop = self._wanted, self._end_of_leaves()
        if stop == first:
            return None
        entries, prefix = self._entries[first:stop], self.folder.path + b"/" if self.folder.path else b""
        digests = self.folder.paths[entries], self.folder.digests[entries]
        part = slice(first - self._begin, stop - self._begin)
        columns, paths = self._batch.walk(part, digests, TREE_BYTES, prefix)
        columns.cuts[0] = 2 * (entries[0] > 0)
        self._wanted, self.folder.next = stop, entries[-1] + 1
        return NamedRun(paths, columns)

    def _end_of_leaves(self) -> int:
        end = stop = self._wanted
        if len(self.folder.path) + 2 * (1 + NAME_MAX) > PATH_MAX:
            return end
        while stop < self._begin + len(self._batch) and self._leaves[stop - self._begin]:
            if self._entries[stop] - stop != self._entries[end] - end:
                break
            stop += 1
        return stop

    def _need_batch(self) -> None:
        if self._wanted < self._begin + len(self._batch):
            return
        batch = self._ahead.popleft().result() if self._ahead else self._lister.list_batch(self.folder, self._next())
        self._batch, self._begin, facts = batch.children, self._wanted, batch.children.facts
        self._leaves = (facts["scan"] != 0) & (facts["folders"] == 0) & (facts["failures"] == 0)
        self._largest = max(self._largest, int(facts["entries"].max()))
        self._seconds = batch.seconds / len(batch.children)
        self._list_ahead()

    def _next(self) -> list[int]:
        """Return the entries of another batch."""
        begin = self._asked
        self._asked = min(begin + self._size(), len(self._entries))
        return self._entries[begin : self._asked]

    def _size(self) -> int:
        """Return how many folders a batch should have, so that each thread gets one."""
        each = (len(self._entries) - self._asked) // LISTERS
        in_time = int(BATCH / max(self._seconds, 1e-9))
        return max(min(each, in_time, BATCH_FOLDERS, AHEAD // self._largest), 1)

    def _list_ahead(self) -> None:
        """Begin to list some of the folders that follow, if it takes long."""
        while (
            self._asked < len(self._entries)
            and len(self._ahead) < min(max(AHEAD // (self._largest * self._size()), 1), 2 * LISTERS)
            and self._size() * self._seconds > SLOW
        ):
            self._ahead.append(self._lister.pool.submit(self._lister.list_batch, self.folder, self._next()))
