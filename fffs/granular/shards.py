"""The folders of a data set: finds them, opens them, and locates their rows in the records of files."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fffs.errors import FffsError, MetadataError, ReadError, SourceNotFoundError
from fffs.formats.bag import SUFFIX, tail_layout
from fffs.granular.bag_reader import open_bag, size_of
from fffs.granular.flush_marker import is_marked
from fffs.granular.spec import NAME, REFS
from fffs.objects.locations import exists, list_folder, open_file
from fffs.records.reopening import ATTEMPTS, PAUSE
from fffs.records.source_file import SourceFile

PATIENCE = 10
"""How many times as long a reader waits for a column if a file says that a writer is appending: a flush may be slow."""


@dataclass(frozen=True)
class Shard:
    """Locates the rows of one folder, as record numbers of the store that has its files.

    ``columns``: (first record, number of records) of each key, in order. ``refs``: the first record of refs.bag, or
    None for v3, where row i is record i of every column.
    """

    layout: str
    rows: int
    size: int
    columns: tuple[tuple[int, int], ...]
    refs: int | None

    @property
    def files(self) -> int:
        """The number of files. The first one is refs.bag, if it exists."""
        return len(self.columns) + (self.refs is not None)


def open_shards(
    path: str, folders: Sequence[str], spec: dict[str, str], check_data: bool = True
) -> tuple[list[SourceFile], list[Shard]]:
    """Open all folders of a data set, or none. Returns their files, which the caller closes, and shards.

    path: the name of the data set in errors. spec: the common spec of the folders, from ``spec.load_common``.
    check_data: as in ``open_bag``.

    Raises:
        SourceNotFoundError: a file is missing.
        MetadataError: a Bag is damaged, or the folders do not belong together.
        ReadError: the operating system could not read.

    """
    sources: list[SourceFile] = []
    try:
        shards = [_open_shard(folder, spec, sources, check_data) for folder in folders]
        if len({shard.layout == "v3" for shard in shards}) > 1:
            raise MetadataError(f"{path}: some shards are of granular before 0.22, others are not")
    except BaseException as error:
        for source in sources:
            source.close()
        if isinstance(error, ReadError) and error.errno == errno.EMFILE:
            hint = "each shard opens one file per key; raise ulimit -n or read fewer shards"
            raise ReadError(errno.EMFILE, path, hint) from None
        raise
    return sources, shards


def _open_shard(folder: str, spec: dict[str, str], sources: list[SourceFile], check_data: bool) -> Shard:
    """Open the files of a folder, and append them to ``sources``."""
    refs_path = os.path.join(folder, REFS + SUFFIX)
    first = sum(len(source.index) for source in sources)
    layout, refs, rows, size = layout_of(folder, spec), None, -1, 0
    if layout != "v3":
        source, _ = open_bag(refs_path, layout, check_data)
        sources.append(source)
        refs, rows, size = first, len(source.index), size_of(source, layout)
        first += rows
    columns: list[tuple[int, int]] = []
    begin = len(sources)
    for key in spec:
        sources.append(open_bag(os.path.join(folder, key + SUFFIX), layout, check_data)[0])
    if refs is None:
        _await_rows(folder, sources, begin)
    for source in sources[begin:]:
        path = source.file.name
        count = len(source.index)
        columns.append((first, count))
        first, size = first + count, size + size_of(source, layout)
        if refs is None:
            if rows not in (-1, count):
                raise MetadataError(
                    f"{path}: it has {count} records, but {next(iter(spec))}{SUFFIX} has {rows}; {_cause(folder)}"
                )
            rows = count
        elif rows == 0 and count:
            raise MetadataError(f"{path}: it has {count} records, but {refs_path} has no rows: copy that file again")
    return Shard(layout, rows, size, tuple(columns), refs)


def _await_rows(folder: str, sources: list[SourceFile], begin: int) -> None:
    """Open columns again that are shorter than others, until all have the rows of what was the longest one.

    A flush appends to one column after another, and each of them was opened at another moment. A row exists when it is
    in all columns, and never changes; those that were appended meanwhile are not counted. If no column grows any more,
    the columns still differ afterwards.

    begin: the number of the first column in ``sources``, in which columns are replaced.
    """
    rows = max((len(source.index) for source in sources[begin:]), default=0)
    idle = 0
    while short := [k for k in range(begin, len(sources)) if len(sources[k].index) < rows]:
        limit = ATTEMPTS * (PATIENCE if is_marked(folder) else 1)
        time.sleep(PAUSE)
        idle += 1
        for k in short:
            again, _ = open_bag(sources[k].file.name, "v3", sources[k].check)
            if len(again.index) > len(sources[k].index):
                idle = 0
            sources[k].close()
            sources[k] = again
        if idle >= limit:
            return
    for k in range(begin, len(sources)):
        sources[k] = _first_rows(sources[k], rows)


def _first_rows(source: SourceFile, rows: int) -> SourceFile:
    """Return a column of which only the first rows are counted."""
    index = source.index
    if len(index) == rows:
        return source
    checksums = None if index.checksums is None else index.checksums[:rows]
    index = replace(index, starts=index.starts[:rows], ends=index.ends[:rows], checksums=checksums)
    return replace(source, index=index.validate())


def _cause(folder: str) -> str:
    """Return why columns may have different lengths in layout v3, and what to do."""
    if is_marked(folder):
        return (
            "a writer is appending (open it again later), or was killed (open and close "
            "DatasetWriter with layout='v3', which removes rows that are not in all columns)"
        )
    return (
        "a file is truncated or an old copy (copy the data set again), or another program is appending to it (open it "
        "again later) or was killed (let it append those rows again)"
    )


def layout_of(folder: str, spec: dict[str, str]) -> str:
    """Return the layout of all Bags of a data set. Records of refs.bag are never empty, so it tells v1 from v2."""
    path = os.path.join(folder, REFS + SUFFIX)
    if REFS in spec or not exists(path):
        return "v3"
    with open_file(path) as file:
        return tail_layout(file)


def shard_name(number: int) -> str:
    """Return the name of a shard's folder."""
    return f"{number:06d}"


def data_set_folders(path: str) -> list[str]:
    """Return the folders of the data set at a path: the path itself, or its shards in order; [] if it is none.

    A folder with a spec.json is a data set only if it also has Bags: other programs use files of that name, too.

    Raises:
        MetadataError, ReadError: as ``find_shards``.

    """
    if is_shard(path):
        return [path]
    return find_shards(path) if is_shard(os.path.join(path, shard_name(0))) else []


def is_shard(folder: str) -> bool:
    """Return whether a folder is a data set without shards, or a shard."""
    if not exists(os.path.join(folder, NAME)):
        return False
    try:
        return any(name.endswith(SUFFIX) for name in list_folder(folder))
    except OSError:
        return True  # without permission to list the folder, its files can still be opened


def find_shards(root: str) -> list[str]:
    """Return the folders of all shards, in order.

    Raises:
        SourceNotFoundError: the folder does not exist.
        MetadataError: there are no shards, a shard is missing, or a folder has an invalid number.
        ReadError: the folder cannot be read.

    """
    try:
        names = list_folder(root)
    except FileNotFoundError:
        raise SourceNotFoundError(f"{root}: no such folder") from None
    except FffsError:
        raise
    except OSError as error:
        raise ReadError(error.errno, root) from error
    found = sorted((name for name in names if name.isdigit() and name.isascii()), key=lambda name: (len(name), name))
    for number, name in enumerate(found):
        if name != shard_name(number):
            raise MetadataError(
                f"{root}: shard {shard_name(number)} is missing, but {name[:60]} exists; copy the missing one, or, if "
                "none was written, rename the folders so that no number is missing"
            )
    if not found:
        raise MetadataError(f"{root}: no shards (folders 000000, 000001, …) in this folder")
    return [os.path.join(root, name) for name in found]
