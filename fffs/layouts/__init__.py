"""Layouts: what tree of names a source is shown as. ``load_source`` opens any source with its tree.

One module per kind: ``packed`` (the tree stored in a packed folder), ``plain`` (one numbered file per record),
``union`` (several packed folders as one).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fffs.errors import SourceNotFoundError, UsageError
from fffs.files import SourceFile
from fffs.layouts import packed, plain, union
from fffs.reader import expand_sources, open_files
from fffs.store import RecordStore
from fffs.tree import Tree


@dataclass(frozen=True)
class Source:
    """Open files and the tree that names their records. Close it when done.

    ``warnings`` are lines for the user, such as names that are hidden by others.
    """

    tree: Tree
    store: RecordStore
    layout: str
    warnings: tuple[str, ...] = ()

    def close(self) -> None:
        """Close the files."""
        self.store.close()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def load_source(paths: Sequence[str | bytes | os.PathLike[Any]], suffix: str = "", check_data: bool = True) -> Source:
    """Open record files, or folders of them, as one tree.

    One packed folder shows its tree; several show their union, in which the first wins. Plain record files show one
    file per record, numbered through; ``suffix`` is added to each name.

    Raises:
        UsageError: packed and plain files are mixed, or a suffix is given for packed ones.
        FormatError, SourceNotFoundError, ReadError: a file cannot be opened.

    """
    return _load(paths, lambda files: _load_any(files, suffix, check_data), check_data)


def load_records(paths: Sequence[str | bytes | os.PathLike[Any]]) -> Source:
    """Open record files, or folders of them, as numbered files, whatever names they hold: those may be damaged.

    Raises:
        FormatError, SourceNotFoundError, ReadError: a file cannot be opened.

    """
    return _load(paths, lambda files: _load_plain(files, ""))


def _load(
    paths: Sequence[str | bytes | os.PathLike[Any]],
    layout: Callable[[list[SourceFile]], _Loaded],
    check_data: bool = True,
) -> Source:
    names = expand_sources([os.fsdecode(path) for path in paths])
    if not names:
        raise SourceNotFoundError("nothing to open")
    files = open_files(names, check_data)
    try:
        loaded = layout(files)
    except BaseException:
        for file in files:
            os.close(file.fd)
        raise
    # The last step: from here on the store owns the descriptors.
    return Source(loaded.tree, RecordStore(loaded.files), loaded.layout, loaded.warnings)


@dataclass(frozen=True)
class _Loaded:
    """What a layout made of open files: the files with their final indexes, and the tree."""

    files: list[SourceFile]
    tree: Tree
    layout: str
    warnings: tuple[str, ...] = ()


def _load_any(files: list[SourceFile], suffix: str, check_data: bool) -> _Loaded:
    if not _all_packed(files):
        return _load_plain(files, suffix)
    if suffix:
        raise UsageError(f"{files[0].index.path}: a packed folder has names of its own; leave --suffix out")
    return _load_packed(files, check_data)


def _all_packed(files: list[SourceFile]) -> bool:
    are_packed = [packed.is_packed(file) for file in files]
    if any(are_packed) and not all(are_packed):
        odd = files[are_packed.index(False)].index.path
        raise UsageError(f"{odd}: not a packed folder, and the other sources are; open them separately")
    return all(are_packed)


def _load_plain(files: list[SourceFile], suffix: str) -> _Loaded:
    n = sum(len(file.index) for file in files)
    mtime = max(os.fstat(file.fd).st_mtime_ns for file in files)
    return _Loaded(files, plain.build(n, suffix, mtime, files[0].index.path), "plain")


def _load_packed(files: list[SourceFile], check_data: bool) -> _Loaded:
    loaded = [packed.load(file, check_data) for file in files]
    files = [entry.file for entry in loaded]
    if len(loaded) == 1:
        return _Loaded(files, loaded[0].tree, "packed")
    tree, hidden = union.merge([entry.tree for entry in loaded], [len(file.index) for file in files])
    lines = tuple(f"{os.fsdecode(path)}: also in {files[k].index.path}, which is hidden" for path, k in hidden)
    return _Loaded(files, tree, "union", lines)
