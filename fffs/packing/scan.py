"""Scanning a folder before it is packed: finds its tree and the files to copy."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fffs.errors import UnsupportedError
from fffs.files.dirfd import PATH_MAX, Way, close
from fffs.files.file_systems import has_inode_numbers
from fffs.files.inodes import place
from fffs.files.sidecar_names import SIDECARS
from fffs.files.temporary import temporary_names
from fffs.native.checksums import crc32
from fffs.packing.arrange import Arranger
from fffs.packing.listing import STATUS, Listing, UInt32Array, UInt64Array
from fffs.packing.source_folder import SourceFolder
from fffs.packing.span import WHOLE, Bounds, Span
from fffs.tree.tree import NAME_MAX, Tree

Array = npt.NDArray[Any]
ROOT_DIGEST = 0


class ExcludedOutput:
    """The file that the scanned folder is packed into. If it lies inside, it is left out, with its temporary files and
    the sidecars of the file that it replaces, which are removed.

    It is recognised by its folder and name, not by its inode: other names of an existing output are packed.
    """

    def __init__(self, path: bytes) -> None:
        """Raises OSError when the folder to write to does not exist."""
        folder, self._name = os.path.split(path)
        self._path = os.path.realpath(folder or b".")
        fd = os.open(folder or b".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._folder, self._numbered = place(os.fstat(fd)), has_inode_numbers(fd)
        finally:
            close(fd)
        self._names = {self._name, *(self._name + ending.encode() for ending in SIDECARS)}
        self._temporary = [temporary_names(name) for name in self._names]

    def is_in(self, folder: tuple[int, int], path: bytes) -> bool:
        """Return whether the output lies directly in the folder with that device and inode, and real path."""
        return self._folder == folder if self._numbered else self._path == path

    def is_named(self, name: bytes) -> bool:
        """Return whether the name is that of the output, of a sidecar, or of a temporary file of these."""
        return name in self._names or any(names.fullmatch(name) for names in self._temporary)


@dataclass(frozen=True)
class Scan:
    """A scanned folder. The bytes of the file that entry entries[k] of the listing names become record k."""

    tree: Tree
    listing: Listing
    entries: UInt32Array
    sizes: npt.NDArray[np.int64]  # of the files, in bytes
    holds_output: bytes | None
    """The path of the folder that the output lies in. Writing the output changes this folder's modification time."""
    digest: int
    """Of the paths, modes, times and sizes of what lies in the span that was scanned; see ``fffs.packing.survey``."""
    arranger: Arranger

    def without(self, records: Sequence[int]) -> Scan:
        """Return the scan without the files of some records, under all of their names. This one is used no more."""
        arranged = self.arranger.run_without(self.entries[list(records)])
        return replace(self, tree=arranged.tree, entries=arranged.entries, sizes=arranged.sizes)

    @property
    def total_bytes(self) -> int:
        """The size of all files together."""
        return int(self.sizes.sum())

    def path(self, k: int) -> bytes:
        """Return the path, relative to the folder that is packed, of the file that becomes record k."""
        return self.listing.path(int(self.entries[k]) + 1)


def scan_folder(
    source: SourceFolder, output: ExcludedOutput | None, warn: Callable[[str], None], span: Span = WHOLE
) -> Scan:
    """Scan a folder depth first, the names of each folder sorted by their bytes. This is the order of the records.

    Args:
        source: the folder.
        output: left out without a warning if it lies inside.
        warn: called with a line for everything that cannot be packed as it is.
        span: what is scanned, with the folders that lead to it.

    Raises:
        ReadError: something in the folder cannot be read.
        SourceChangedError: something vanished during the scan, or a folder was replaced by something else.

    """
    with Way(source.fd) as way:
        return _Scanner(source, output, warn, way).run(span)


@dataclass
class _Folder:
    """A folder whose content is being scanned: its entries from ``next`` on, up to ``end``, are still to do."""

    path: bytes
    next: int
    end: int
    bounds: Bounds
    paths: UInt64Array  # digests of the paths of all of its entries


class _Scanner:
    """Lists all folders, depth first, through open descriptors, never by a path that may be replaced."""

    def __init__(
        self, source: SourceFolder, output: ExcludedOutput | None, warn: Callable[[str], None], way: Way
    ) -> None:
        self.source, self.output, self.warn, self.way = source, output, warn, way
        self.listing = Listing()
        self.digest = 0
        self.holds_output: bytes | None = None
        self.numbered: dict[int, bool] = {}  # device -> whether its inode numbers are reliable

    def run(self, span: Span) -> Scan:
        listing, way = self.listing, self.way
        root, folder = self._add(b"", 0, span.bounds(), ROOT_DIGEST)
        self.digest += 0 if span.start else digest_of_root(root)
        stack = [folder]
        while stack:
            folder = stack[-1]
            entry = listing.next_folder(folder.next, folder.end)
            if entry == folder.end:
                stack.pop()
                if stack:
                    way.leave()
                continue
            digest = int(folder.paths[entry - folder.end])  # from the end of the array
            folder.next = entry + 1
            name = listing.name(entry)
            below = os.path.join(folder.path, name)
            try:
                way.enter(name)
            except OSError as error:
                self.source.fail(error, below)
                continue
            stack.append(self._add(below, entry + 1, folder.bounds.below(name), digest)[1])
        arranger = Arranger(listing, root, self.numbered, self.source, self.warn)
        arranged = arranger.run()
        return Scan(
            arranged.tree,
            listing,
            arranged.entries,
            arranged.sizes,
            self.holds_output,
            self.digest % 2**64,
            arranger,
        )

    def _add(self, path: bytes, node: int, bounds: Bounds, digest: int) -> tuple[Array, _Folder]:
        """List the current folder, except for the output if that is in it. Returns its status, and itself.

        digest: of its path.
        """
        listing, first = self.listing, len(self.listing)
        try:
            fd = self.way.fd
            status = listing.add(fd, node, self.source.shown(b""), bounds.names())
        except OSError as error:
            self.source.fail(error, path)
            return np.zeros(1, STATUS), _Folder(path, first, first, bounds, np.empty(0, np.uint64))
        device = int(status["device"][0])
        if device not in self.numbered:
            self.numbered[device] = has_inode_numbers(fd)
        refuse_long_paths(listing, first, path, self.source)
        paths, digests = listing.digests(first, digest)
        self._leave_out_leading(first, bounds, digests)
        self.digest += int(digests.sum())
        self._leave_out_output(first, path, (device, int(status["inode"][0])))
        return status, _Folder(path, first, len(listing), bounds, paths)

    def _leave_out_leading(self, first: int, bounds: Bounds, digests: UInt64Array) -> None:
        """Leave out what the span begins below, unless it is a folder, which is kept for what is in it."""
        listing = self.listing
        if first < len(listing) and bounds.leads_to(listing.name(first)):
            digests[0] = 0
            if not stat.S_ISDIR(int(listing.statuses["mode"][first])):
                listing.statuses[first] = np.zeros((), STATUS)

    def _leave_out_output(self, first: int, path: bytes, folder: tuple[int, int]) -> None:
        """folder: device and inode."""
        listing = self.listing
        real = os.path.join(self.source.real, path) if path else self.source.real
        if self.output and self.output.is_in(folder, real):
            self.holds_output = path
            named = [k for k in range(first, len(listing)) if self.output.is_named(listing.name(k))]
            listing.statuses[named] = np.zeros((), STATUS)


def refuse_long_paths(listing: Listing, first: int, folder: bytes, source: SourceFolder) -> None:
    """Raise UnsupportedError if a path is too long, of an entry of a folder from ``first`` on."""
    if len(folder) + 1 + NAME_MAX > PATH_MAX:
        for entry in range(first, len(listing)):
            if len(below := os.path.join(folder, listing.name(entry))) > PATH_MAX:
                raise UnsupportedError(f"{source.shown(below)}: its path is longer than {PATH_MAX} bytes")


def digest_of_root(status: Array) -> int:
    """Return a digest of the mode and time of the folder that is walked."""
    return crc32(repr([int(status[field][0]) for field in ("mode", "mtime", "mtime_ns")]).encode())
