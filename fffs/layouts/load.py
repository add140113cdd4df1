"""Opening any source as a view: finds out its layout and loads its tree."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fffs.base.importing import importing
from fffs.base.paths import PathLike
from fffs.base.together import together
from fffs.base.withblock import closed_on_error
from fffs.errors import FormatError, MetadataError, RecordError, SourceNotFoundError, UsageError
from fffs.files.file import File
from fffs.formats.bag import COMPRESSED
from fffs.formats.part_names import sets_among
from fffs.formats.sources import expand_sources, load_file, open_files, openers
from fffs.formats.table import format_of, format_with, recogniser
from fffs.layouts import packed, plain, union
from fffs.layouts.rows_view import RowsView
from fffs.layouts.view import DecodedTreeView, TreeView, View
from fffs.objects.locations import is_folder
from fffs.records.source_file import SourceFile
from fffs.records.store import RecordStore
from fffs.tree.tree import Tree

if TYPE_CHECKING:
    from fffs.layouts.granular import DataSetFiles

Paths = PathLike | Sequence[PathLike]

HIDDEN_NAMED = 9
"""How many names that are hidden in a union are named in warnings. With their count, a mount logs ten lines."""


def load_source(
    paths: Paths,
    suffix: str = "",
    check_data: bool = True,
    format: str | None = None,
    prefix: str | None = None,
) -> TreeView:
    """Open a record file of any format, a folder of them, a list of both, or a granular data set, as one tree.

    One packed folder shows its tree; several show their union, in which the first file of a path hides the others.
    Plain record files show one file per record, numbered through all files; ``suffix`` is added to each name. A data
    set shows a folder per datapoint, with every blob as it is stored.

    Args:
        paths: a file, a folder, or a list of them.
        suffix: appended to the numbered names.
        check_data: verify the checksums of trees and tables, if there are any.
        format: "ffrecord", "tfrecord", "ofrecord" or "bag", for files that are not recognised by content and name.
        prefix: of the names of OFRecord parts in folders, as for ``fffs.open``.

    Raises:
        UsageError: packed and plain files are mixed, a suffix is given for a source with names of its own, or the
            format does not exist.
        FormatError, SourceNotFoundError, ReadError: a file cannot be opened.

    Examples:
        >>> with fffs.load_source("train.ffr", suffix=".txt") as source:
        ...     fffs.unpack(source, "texts")
        >>> sorted(os.listdir("texts"))
        ['000000.txt', '000001.txt', '000002.txt']

    """
    names, format = _names(paths), format_with(prefix, format)
    if data := _open_data_set(names, suffix, check_data, format):
        return _load_data_set(data)
    return _load(_open(names, check_data, format, prefix), lambda files: _load_any(files, suffix))


def load_files(files: list[File], check_data: bool = True, format: str | None = None) -> TreeView:
    """As ``load_source``, for open files. Takes them over, and closes them if this raises."""
    recognise = recogniser(format)
    with closed_on_error(files):
        sources = [load_file(file, recognise, check_data) for file in files]
    return _load(sources, lambda sources: _load_any(sources, ""))


def load_packed(paths: Paths, check_data: bool = True) -> TreeView:
    """Open packed folders, as ``load_source``, but nothing else.

    Raises:
        FormatError: the source is not a packed folder. MetadataError: its tree is damaged. Also as ``load_source``.

    """
    source = load_source(paths, check_data=check_data)
    if source.layout in ("packed", "union"):
        return source
    with source:
        shown, store = source.store.files[0].index.path, source.store
        # The source has no tree, or the first bytes of the tree are damaged.
        if source.layout == "plain" and store.n and store.verify(np.array([store.n - 1])):
            raise MetadataError(f"{shown}: the last record, which may have been the tree of names, is damaged")
        raise FormatError(f"{shown}: not a packed folder (it has no tree)")


def load_records(paths: Paths, format: str | None = None) -> TreeView:
    """Open record files, or folders of them, as numbered files, without their trees of names, which may be damaged.
    format: as in ``load_source``.

    Raises:
        FormatError, SourceNotFoundError, ReadError: a file cannot be opened.

    """
    names = _names(paths)
    if data := _open_data_set(names, "", True, format):
        return _load_blobs(data)
    return _load(_open(names, True, format), lambda files: _load_plain(files, ""))


def load_shown(
    paths: Paths,
    suffix: str = "",
    check_data: bool = True,
    format: str | None = None,
    decode: bool | None = None,
    prefix: str | None = None,
) -> View:
    """Open a source as a view, which may also show decoded files and rows. The caller closes it.

    Args:
        paths: as for ``load_source``.
        suffix: as for ``load_source``.
        check_data: as for ``load_source``.
        format: as for ``load_source``.
        decode: True: show the features of TFRecord and OFRecord files, and a data set's arrays and numbers as ``.npy``
            files. None: decode only a data set's arrays. False: show everything as it is stored.
        prefix: as for ``load_source``.

    Raises:
        UsageError: the source cannot be decoded. Also as ``load_source``.

    """
    names, format = _names(paths), format_with(prefix, format)
    if data := _open_data_set(names, suffix, check_data, format):
        return _show_data_set(data, decode)
    if decode and suffix:
        raise UsageError("--suffix is only for records as they are stored; omit it or decode")
    files = _open(names, check_data, format, prefix)
    return _decode(files) if decode else _load(files, lambda files: _load_any(files, suffix))


# ---------------------------------------------------------------- record files


def _names(paths: Paths) -> list[str]:
    given = [paths] if isinstance(paths, (str, bytes, os.PathLike)) else paths
    return [os.fsdecode(path) for path in given]


def _load(files: list[SourceFile], layout: Callable[[list[SourceFile]], _Loaded]) -> TreeView:
    with closed_on_error(files):
        loaded = layout(files)
    cut = tuple(_describe_cut(file) for file in loaded.files if file.index.truncated)
    # This is the last step: from here on the store owns the files.
    store = RecordStore(loaded.files)
    return TreeView(loaded.tree, store, (*cut, *loaded.warnings), loaded.layout)


def _describe_cut(file: SourceFile) -> str:
    """Return a warning for a truncated file, whose tree of names, if it had one, was at the end."""
    index, form = file.index, format_of(file.index)
    lost = "; if it was a packed folder, its names are lost" if form is not None and form.holds_trees else ""
    return (
        f"{index.path}: the file is truncated: only {index.count_readable()} of {len(index)} records can be read"
        f"{lost}; copy it again"
    )


def _open(names: list[str], check_data: bool, form: str | None, prefix: str | None = None) -> list[SourceFile]:
    paths = expand_sources(names, prefix)
    if not paths:
        raise SourceNotFoundError("no files to open; name a file or folder")
    return open_files(paths, check_data, form)


@dataclass(frozen=True)
class _Loaded:
    """The result of a layout: the files with their final indexes, and the tree."""

    files: list[SourceFile]
    tree: Tree
    layout: str
    warnings: tuple[str, ...] = ()


def _load_any(files: list[SourceFile], suffix: str) -> _Loaded:
    if not _all_packed(files):
        return _load_plain(files, suffix)
    if suffix:
        raise UsageError(f"{files[0].index.path}: a packed folder has its own names; omit --suffix")
    return _load_packed(files)


def _all_packed(files: list[SourceFile]) -> bool:
    are_packed = together(packed.is_packed, files, _threads(files))
    if any(are_packed) and not all(are_packed):
        odd = files[are_packed.index(False)].index.path
        raise UsageError(f"{odd}: not a packed folder, unlike other sources; open them separately")
    return all(are_packed)


def _load_plain(files: list[SourceFile], suffix: str) -> _Loaded:
    if not suffix and all(file.index.path.endswith(COMPRESSED) for file in files):
        suffix = ".zst"  # the records are stored compressed
    n = sum(len(file.index) for file in files)
    mtime = max(file.file.mtime_ns for file in files)
    return _Loaded(files, plain.build(n, suffix, mtime, files[0].index.path), "plain")


def _threads(files: list[SourceFile]) -> int:
    return openers([file.index.path for file in files])


def _load_packed(files: list[SourceFile]) -> _Loaded:
    loaded = together(packed.load, files, _threads(files))
    files = [entry.file for entry in loaded]
    if len(loaded) == 1:
        return _Loaded(files, loaded[0].tree, "packed")
    found = _merge(loaded, HIDDEN_NAMED)
    if found.hidden:
        _refuse_mixed(loaded)
    lines = [f"{os.fsdecode(path)}: also in {files[k].index.path}, which is hidden" for path, k in found.named]
    if found.hidden > len(lines):
        lines.append(f"... and {found.hidden - len(lines)} more names that earlier sources hide")
    return _Loaded(files, found.tree, "union", tuple(lines))


def _merge(packs: Sequence[packed.Packed], limit: int) -> union.Union:
    return union.merge([pack.tree for pack in packs], [len(pack.file.index) for pack in packs], limit)


def _refuse_mixed(loaded: Sequence[packed.Packed]) -> None:
    """Raise FormatError if parts of a set have a name in common. Then some are of another set, and names may lack."""
    by_path = {pack.file.index.path: pack for pack in loaded}
    for pattern, paths in sets_among(by_path).items():
        for path, k in _merge([by_path[path] for path in paths], 1).named:
            raise FormatError(
                f"{pattern}: {paths[k]} and another part both have {os.fsdecode(path)}, so they are not parts of one "
                "set; copy all of them again"
            )


def _decode(files: list[SourceFile]) -> View:
    with importing:
        from fffs.layouts.messages import MessageRows

    store = RecordStore(files)
    with closed_on_error((store,)):
        return RowsView(MessageRows(files, store), store)


# ---------------------------------------------------------------- data sets


def _open_data_set(names: list[str], suffix: str, check_data: bool, form: str | None) -> DataSetFiles | None:
    """Open the data set that is named, if one is. With a format, none is: all formats are those of record files."""
    folders = [name for name in names if is_folder(name)]
    if form is not None or not folders:
        return None  # importing granular takes as long as opening a large pack, so it is imported for folders only
    with importing:
        from fffs.granular.shards import data_set_folders
        from fffs.layouts.granular import DataSetFiles

    sets = [name for name in folders if data_set_folders(name)]
    if sets and len(names) > 1:
        raise UsageError(f"{sets[0]}: a granular data set can only be opened alone")
    if sets and suffix:
        raise UsageError(f"{sets[0]}: a granular data set has its own names; omit --suffix")
    return DataSetFiles(sets[0], check_data) if sets else None


def _load_data_set(data: DataSetFiles) -> TreeView:
    with importing:
        from fffs.layouts import granular

    with closed_on_error(data.files):
        tree = granular.build(data)
    return TreeView(tree, RecordStore(data.files), layout="granular")


def _load_blobs(data: DataSetFiles) -> TreeView:
    """Show all records of all Bags of a data set as numbered files."""
    with closed_on_error(data.files):
        loaded = _load_plain(data.files, "")
    return TreeView(loaded.tree, RecordStore(data.files), layout=loaded.layout)


def _show_data_set(data: DataSetFiles, decode: bool | None) -> View:
    with importing:
        from fffs.layouts import granular, granular_rows

    arrays, numbers = decode is not False, decode is True
    warnings: tuple[str, ...] = ()
    store = RecordStore(data.files)
    with closed_on_error((store,)):
        if data.fits_a_tree():
            try:
                tree = granular.build(data, granular_rows.shown_keys(data, arrays, numbers))
                decoded = granular_rows.decoded_files(data, tree, store, arrays, numbers)
                return DecodedTreeView(tree, store, decoded) if decoded else TreeView(tree, store)
            except (MetadataError, RecordError) as error:  # some rows are damaged: RowsView can show the others
                warnings = (str(error),)
        return RowsView(granular_rows.GranularRows(data, store, arrays, numbers), store, warnings)
