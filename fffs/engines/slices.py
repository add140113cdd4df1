"""Slices of a source: runs of its files that any process can read, each as one batch."""

from __future__ import annotations

import operator
import stat
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from fffs.base.numbers import Int64Array
from fffs.base.paths import PathLike
from fffs.errors import UsageError
from fffs.files.file import UInt8Array
from fffs.layouts.shared_views import OpenSource, open_view
from fffs.layouts.view import TreeView
from fffs.records.identity import Identity, joined
from fffs.records.reopening import require_same

SLICE_BYTES: Final = 64 << 20

Decode = Callable[[bytes], dict[str, Any]]


class SliceBatch(NamedTuple):
    """The content of a slice: file i is ``buffer[offsets[i]:offsets[i + 1]]``."""

    paths: list[str]
    buffer: UInt8Array
    offsets: Int64Array


@dataclass(frozen=True)
class Slice:
    """The files of a source from number ``start`` on, and before ``stop``, in the order of their bytes in the source.

    Can be pickled, and is small however many files the source has. ``size``: their bytes.
    """

    source: OpenSource
    identity: Identity = field(repr=False)
    start: int
    stop: int
    size: int

    def __len__(self) -> int:
        return self.stop - self.start

    def divided(self, *, count: int | None = None, slice_bytes: int = SLICE_BYTES) -> list[Slice]:
        """Return this slice as smaller ones, as ``slices_of``. The source is opened for that. Raises as ``read``."""
        if not len(self):
            return []
        view = self._view()
        ends = np.cumsum(view.store.lengths(view.tree.ref[_nodes_of(view)[self.start : self.stop]].astype(np.int64)))
        smaller = []
        for start, stop in _cuts(ends, count or -(-self.size // slice_bytes)):
            size = int(ends[stop - 1] - (ends[start - 1] if start else 0))
            smaller.append(Slice(self.source, self.identity, self.start + start, self.start + stop, size))
        return smaller

    def _view(self) -> TreeView:
        view = open_view(self.source)
        require_same(view.store, self.identity, self.source.shown)
        return view

    def read(self) -> SliceBatch:
        """Read and verify the files. The caller owns the memory.

        The source stays open for the next slice that is read in this process. Thread-safe, and usable after fork.

        Raises:
            SourceChangedError: the source is not the one that was divided. Also as ``PackedFolder.read``.

        """
        view = self._view()
        nodes = _nodes_of(view)[self.start : self.stop]
        paths = [path.decode("utf-8", "backslashreplace") for path in view.paths((nodes + 1).tolist())]
        return SliceBatch(paths, *view.store.read_joined(view.tree.ref[nodes].astype(np.int64)))


# A view is shared by all slices of a source that a process reads, and so is the order of its files.
_nodes: weakref.WeakKeyDictionary[TreeView, Int64Array] = weakref.WeakKeyDictionary()


def _nodes_of(view: TreeView) -> Int64Array:
    """Return the files of a view in the order of their records, each once, however many names it has."""
    found = _nodes.get(view)
    if found is None:
        nodes = np.flatnonzero(view.tree.kinds == stat.S_IFREG)
        found = _nodes[view] = nodes[np.argsort(view.tree.ref[nodes], kind="stable")]
    return found


def slices_of(
    fo: PathLike | Sequence[PathLike],
    *,
    count: int | None = None,
    slice_bytes: int = SLICE_BYTES,
    check_data: bool = True,
    format: str | None = None,
) -> list[Slice]:
    """Divide the files of a source into slices of about equal size.

    Args:
        fo: a file, a folder, a URL, or a list of them, in any format.
        count: how many slices; there are fewer if there are fewer files. None: as many as ``slice_bytes`` needs.
        slice_bytes: the bytes of a slice, unless a single file is larger.
        check_data: compare checksums.
        format: as of ``fffs.open``.

    Raises:
        UsageError: a number is not positive, or the source is one that decodes what it shows. Also as ``fffs.open``.

    """
    for what, number in (("count", count), ("slice_bytes", slice_bytes)):
        if number is not None and operator.index(number) < 1:
            raise UsageError(f"{what} must be positive, not {number}")
    return whole_of(fo, check_data=check_data, format=format).divided(count=count, slice_bytes=slice_bytes)


def whole_of(fo: PathLike | Sequence[PathLike], *, check_data: bool = True, format: str | None = None) -> Slice:
    """Return all files of a source as one slice. Arguments and errors are those of ``slices_of``."""
    source = OpenSource.of(fo, None, None, check_data, format, "")
    view = open_view(source)
    if type(view) is not TreeView:
        raise UsageError(f"{source.shown}: shown as rows or decoded files, which engines cannot read; use fffs.open")
    nodes = _nodes_of(view)
    size = int(view.store.lengths(view.tree.ref[nodes].astype(np.int64)).sum())
    return Slice(source, joined(view.store.identity), 0, len(nodes), size)


def _cuts(ends: Int64Array, count: int) -> list[tuple[int, int]]:
    """Return the beginning and end of at most ``count`` slices, none of them empty."""
    count = min(max(count, 1), len(ends))
    wanted = float(ends[-1]) * np.arange(1, count) / count  # a product of integers of 64 bits would overflow
    cuts = np.concatenate([[0], np.searchsorted(ends, wanted) + 1, [len(ends)]])
    # Where files are larger than a slice, or empty, cuts coincide; each slice then has one file at least.
    cuts = np.minimum(cuts, len(ends) - np.arange(count, -1, -1))
    cuts = np.maximum.accumulate(cuts - np.arange(count + 1)) + np.arange(count + 1)
    return list(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True))


def rows_of(batch: SliceBatch, decode: Any = None) -> list[Any]:
    """Return (path, bytes) of each file, or what ``decode`` makes of its bytes."""
    data, bounds = batch.buffer.tobytes(), batch.offsets.tolist()
    contents = (data[start:end] for start, end in pairwise(bounds))
    if decode is not None:
        return [decode(content) for content in contents]
    return list(zip(batch.paths, contents, strict=True))
