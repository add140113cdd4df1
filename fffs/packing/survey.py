"""survey: walks a folder, one listed folder after the other in memory, and divides it into parts."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

import numpy as np

from fffs.files.dirfd import Way
from fffs.packing.division import CutPlace, Division, NamedRun
from fffs.packing.listing import STATUS, Listing, UInt64Array
from fffs.packing.pack_file import TREE_BYTES
from fffs.packing.scan import ROOT_DIGEST, digest_of_root, refuse_long_paths
from fffs.packing.source_folder import SourceFolder
from fffs.records.index import Int64Array

KINDS = (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)


@dataclass
class _Listed:
    """A listed folder. ``next``: its first entry that was not added yet."""

    path: bytes
    listing: Listing
    weights: Int64Array
    sizes: Int64Array
    paths: UInt64Array
    digests: UInt64Array
    next: int = 0

    def entries(self, stop: int) -> NamedRun:
        """Return the entries from the next one on."""
        part, first = slice(self.next, stop), self.next
        prefix = self.path + b"/" if self.path else b""
        columns = self.weights[part], self.sizes[part], self.digests[part]
        depths = np.broadcast_to(np.int64(prefix.count(b"/")), stop - first)
        return NamedRun(lambda k: prefix + self.listing.name(first + k), depths, *columns)


def survey(source: SourceFolder, parts: int) -> list[CutPlace]:
    """Walk a folder and return where its parts begin, and the end. The same folder gives the same parts.

    A part is as heavy as its files, with TREE_BYTES for each name: about as large as its pack.

    Raises:
        ReadError, SourceChangedError, UnsupportedError: as ``scan_folder``.

    """
    division = Division(parts)
    with Way(source.fd) as way:
        root, folder = _list(source, way, b"", ROOT_DIGEST)
        division.add_folder(b"", TREE_BYTES, digest_of_root(root), is_first=True)
        stack = [folder]
        while stack:
            folder = stack[-1]
            count = len(folder.listing)
            entry = folder.listing.next_folder(folder.next, count)
            if entry > folder.next:
                division.add(folder.entries(entry), is_first=folder.next == 0)
            if entry == count:
                stack.pop()
                if stack:
                    way.leave()
                continue
            path = os.path.join(folder.path, folder.listing.name(entry))
            division.add_folder(path, TREE_BYTES, int(folder.digests[entry]), is_first=entry == 0)
            folder.next = entry + 1
            try:
                way.enter(folder.listing.name(entry))
            except OSError as error:
                source.fail(error, path)
                continue
            stack.append(_list(source, way, path, int(folder.paths[entry]))[1])
    return division.cut()


def _list(source: SourceFolder, way: Way, path: bytes, digest: int) -> tuple[np.ndarray, _Listed]:
    """Return the status of the current folder, and what is in it. digest: of its path."""
    listing, status = Listing(), np.zeros(1, STATUS)
    try:
        status = listing.add(way.fd, 0, source.shown(b""))
    except OSError as error:
        source.fail(error, path)
    statuses = listing.statuses
    for entry in np.flatnonzero(statuses["error"]).tolist():
        number = -int(statuses["error"][entry])
        source.fail(OSError(number, os.strerror(number)), os.path.join(path, listing.name(entry)))
    refuse_long_paths(listing, 0, path, source)
    kinds = statuses["mode"] & 0o170000
    sizes = np.where(kinds == stat.S_IFREG, statuses["size"], 0)
    weights = sizes + np.where(np.isin(kinds, KINDS), TREE_BYTES, 0)
    return status, _Listed(path, listing, weights, sizes, *listing.digests(0, digest))
