"""NewFiles: the files that unpacking makes, and how many small ones are made in one call."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fffs.files.file import UInt8Array
from fffs.native import ffi, lib
from fffs.packing.places import Places
from fffs.packing.runs import divide
from fffs.records.store import RecordStore
from fffs.tree.tree import Tree

GAP = 4096  # the most bytes between two records that are read with them: formats have lengths and checksums there


class NewFiles:
    """The files of a tree, in the order of their records. Immutable; may be used from several threads.

    ``entries`` has the entry of each, ``sizes`` its bytes; ``runs`` has where runs begin, and the end. The files of a
    run lie in one folder, and their records close together in one file of the store.
    """

    def __init__(self, tree: Tree, store: RecordStore, places: Places, mode_mask: int) -> None:
        """mode_mask: the bits of modes that are set."""
        self._tree, self._store, self._mode_mask = tree, store, mode_mask
        self.entries = places.files
        records = tree.ref[tree.entry_nodes[self.entries]].astype(np.int64)
        index = store.index
        self._starts, self._ends, self._checksums = index.starts[records], index.ends[records], index.checksums[records]
        self._sources: npt.NDArray[Any] = index.files_of(records)
        self.sizes = self._ends - self._starts
        gaps, folders = self._starts[1:] - self._ends[:-1], places.parents[self.entries]
        breaks = (gaps < 0) | (gaps > GAP) | (folders[1:] != folders[:-1]) | (self._sources[1:] != self._sources[:-1])
        self.runs = divide(breaks, self.sizes)

    def read(self, first: int, last: int) -> UInt8Array | None:
        """Return the bytes with the records of files ``first`` to ``last`` of a run: see ``RecordStore.read_span``."""
        return self._store.read_span(int(self._sources[first]), int(self._starts[first]), int(self._ends[last - 1]))

    def make(self, first: int, last: int, data: UInt8Array, at: int, folder: int) -> tuple[int, int, int]:
        """Verify and make files ``at`` to ``last`` of a run in an open folder, from the bytes that ``read`` returned.

        Returns:
            The file that could not be made, or ``last``; 0 or its errno (EBADMSG: its record is bad, and there is no
            file); and the number of files whose mode or time the file system does not let set.

        """
        files = ffi.new("fffs_new_files *")
        files.tree = self._tree.native
        files.entries = _pointer("uint32_t *", self.entries)
        files.starts, files.ends = _pointer("int64_t *", self._starts), _pointer("int64_t *", self._ends)
        files.checksums = _pointer("uint32_t *", self._checksums)
        files.data, files.offset = _pointer("uint8_t *", data), int(self._starts[first])
        files.count, files.mode_mask = last, self._mode_mask
        files.check = self._store.files[self._sources[first]].index.check
        following, plain = ffi.new("uint64_t *", at), ffi.new("uint64_t *")
        status = lib.fffs_make_files(files, folder, following, plain)
        return int(following[0]), -status, int(plain[0])


def _pointer(kind: str, array: npt.NDArray[np.generic]) -> Any:
    return ffi.cast(kind, array.ctypes.data)
