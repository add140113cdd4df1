"""Archives: several archives that are packed into one file, as one tree; parts whose names must differ."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

import numpy as np

from fffs.base.jobs import Jobs
from fffs.base.withblock import Closing, closed_on_error
from fffs.converting.archive import Archive
from fffs.converting.archives import open_archive
from fffs.converting.packs import scan_archive
from fffs.converting.source_parts import SourcePart, refuse_changed
from fffs.errors import UsageError
from fffs.layouts import packed, union
from fffs.packing.contents import Work
from fffs.packing.names import Contents, Int64Array
from fffs.packing.numbering import renumber
from fffs.tree.tree import Tree, UInt8Array, UInt32Array


class Archives(Closing):
    """Open archives that follow each other. ``path``: of the first, for messages."""

    def __init__(self, parts: Sequence[SourcePart], kind: str, warn: Callable[[str], None]) -> None:
        """kind: "tar" or "zip". Raises as ``open_archive``; SourceChangedError: one is not as it was."""
        self.path = parts[0].path
        self._archives: list[Archive] = []
        self._shares: list[tuple[int, Contents]] = []  # of each archive, its first record, and what is packed of it
        with closed_on_error(self._archives):
            for part in parts:
                self._archives.append(open_archive(part.path, kind, warn))
                refuse_changed(part, self._archives[-1].file)

    def scan(self) -> Contents:
        """Read the names of all archives: the first of two passes.

        Raises UsageError: two have the same name. Also as ``Archive.scan``.
        """
        found = [scan_archive(archive, None) for archive in self._archives]
        if len(found) == 1:
            self._shares = [(0, found[0])]
            return found[0]
        counts = [len(contents.sizes) for contents in found]
        shown = [archive.path for archive in self._archives]
        tree, records = renumber(join_trees([contents.tree for contents in found], counts, shown))
        firsts = list(accumulate(counts, initial=0))
        edges = np.searchsorted(records, firsts).tolist()
        for k, contents in enumerate(found):
            kept = records[edges[k] : edges[k + 1]] - firsts[k]
            self._shares.append((edges[k], Contents(contents.tree, contents.places[kept], contents.sizes[kept])))
        places, sizes = (np.concatenate([share[column] for _, share in self._shares]) for column in (1, 2))
        return Contents(tree, places, sizes)

    def each(self, work: Work, contents: Contents, jobs: Jobs, threads: int) -> None:
        """Pass each file to ``work``, as ``Archive.each``, one archive after the other."""
        for archive, (first, share) in zip(self._archives, self._shares, strict=True):
            archive.each(_Behind(work, first), share, jobs, threads)

    def refuse_changed(self) -> None:
        """Raise SourceChangedError if an archive has changed since it was opened."""
        for archive in self._archives:
            archive.refuse_changed()

    def close(self) -> None:
        """Close the archives."""
        for archive in self._archives:
            archive.close()


class _Behind:
    """Passes on work on records that follow those of earlier archives."""

    def __init__(self, work: Work, first: int) -> None:
        self._work, self._first = work, first

    def files(self, records: UInt32Array, starts: Int64Array, data: UInt8Array) -> None:
        self._work.files((records + np.uint32(self._first)).astype(np.uint32), starts, data)

    def file(self, record: int, pieces: Iterator[bytes]) -> None:
        self._work.file(record + self._first, pieces)


def join_trees(trees: Sequence[Tree], counts: Sequence[int], shown: Sequence[str]) -> Tree:
    """Return the union of trees, as ``union.merge``. shown: the source of each.

    Raises UsageError: two have the same name, other than of a folder.
    """
    found = union.merge(trees, counts, 1)
    for path, k in found.named:
        raise UsageError(
            f"{shown[k]}: {os.fsdecode(path)!r} is in an earlier source, too, and a tree has one file of a name; "
            "convert them to sets of their own"
        )
    return found.tree


def refuse_same_names(paths: Sequence[str], shown: Sequence[str]) -> None:
    """Raise UsageError if two packs have the same name, other than of a folder. shown: what they were made from."""
    join_trees(*packed.load_trees(paths), shown)
