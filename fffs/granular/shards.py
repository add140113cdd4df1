"""The folders of a data set: which they are, and opened, which records of which files are its rows."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass

from fffs.errors import MetadataError, ReadError, SourceNotFoundError
from fffs.files.local import LocalFile
from fffs.formats.bag import SUFFIX, tail_layout
from fffs.granular.bag_reader import open_bag, size_of
from fffs.granular.spec import NAME, REFS
from fffs.records.source_file import SourceFile


@dataclass(frozen=True)
class Shard:
    """Where the rows of one data set are, as record numbers of the store that its files are in.

    ``columns``: for each key in order the first record and how many there are. ``refs``: the first record of refs.bag,
    or None for v3, where row i is record i of every column.
    """

    layout: str
    rows: int
    size: int
    columns: tuple[tuple[int, int], ...]
    refs: int | None

    @property
    def files(self) -> int:
        """How many it has, the first of which is refs.bag where there is one."""
        return len(self.columns) + (self.refs is not None)


def open_shards(path: str, folders: Sequence[str], spec: dict[str, str]) -> tuple[list[SourceFile], list[Shard]]:
    """Open folders of one data set, all of them or none: their files, the caller's to close, and what they hold.

    path: what errors call the data set. spec: of all of them, as ``spec.load_common`` has it.

    Raises:
        SourceNotFoundError: a file is missing.
        MetadataError: a Bag is damaged, or they do not belong together.
        ReadError: the operating system could not read.

    """
    sources: list[SourceFile] = []
    try:
        shards = [_open_shard(folder, spec, sources) for folder in folders]
        if len({shard.layout == "v3" for shard in shards}) > 1:
            raise MetadataError(f"{path}: some shards are of granular before 0.22, some are not")
    except BaseException as error:
        for source in sources:
            source.close()
        if isinstance(error, ReadError) and error.errno == errno.EMFILE:
            hint = "a shard needs one file per key: raise ulimit -n or read fewer shards"
            raise ReadError(errno.EMFILE, path, hint) from None
        raise
    return sources, shards


def _open_shard(folder: str, spec: dict[str, str], sources: list[SourceFile]) -> Shard:
    """Open the files of a folder, behind those in sources."""
    refs_path = os.path.join(folder, REFS + SUFFIX)
    first = sum(len(source.index) for source in sources)
    layout, refs, rows, size = layout_of(folder, spec), None, -1, 0
    if layout != "v3":
        source, _ = open_bag(refs_path, layout)
        sources.append(source)
        refs, rows, size = first, len(source.index), size_of(source, layout)
        first += rows
    columns: list[tuple[int, int]] = []
    for key in spec:
        path = os.path.join(folder, key + SUFFIX)
        source, _ = open_bag(path, layout)
        sources.append(source)
        count = len(source.index)
        columns.append((first, count))
        first, size = first + count, size + size_of(source, layout)
        if refs is None:
            if rows not in (-1, count):
                raise MetadataError(
                    f"{path}: it has {count} records and {next(iter(spec))}{SUFFIX} has {rows}: columns must have one "
                    "per row. A writer was stopped (DatasetWriter with layout='v3' mends that), or a file was cut"
                )
            rows = count
        elif rows == 0 and count:
            raise MetadataError(f"{path}: it has {count} records, but {refs_path} has no rows; that file was cut")
    return Shard(layout, rows, size, tuple(columns), refs)


def layout_of(folder: str, spec: dict[str, str]) -> str:
    """The layout of all Bags of a data set. No record of refs.bag is empty, so that v1 and v2 can be told apart."""
    path = os.path.join(folder, REFS + SUFFIX)
    if REFS in spec or not os.path.lexists(path):
        return "v3"
    with LocalFile.open(path) as file:
        return tail_layout(file)


def shard_name(number: int) -> str:
    """The folder of a shard."""
    return f"{number:06d}"


def data_set_folders(path: str) -> list[str]:
    """The folders of the data set at a path: that path, or its shards in order; none where there is something else.

    A spec.json alone makes no data set: other programs have files of that name. There must be Bags beside it.

    Raises:
        MetadataError, ReadError: as ``find_shards``.

    """
    if is_shard(path):
        return [path]
    return find_shards(path) if is_shard(os.path.join(path, shard_name(0))) else []


def is_shard(folder: str) -> bool:
    """Whether a folder is a data set, or a shard of one, by itself."""
    if not os.path.lexists(os.path.join(folder, NAME)):
        return False
    try:
        return any(name.endswith(SUFFIX) for name in os.listdir(folder))
    except OSError:
        return True  # one that we may enter and not list can be opened all the same


def find_shards(root: str) -> list[str]:
    """The folders of all shards, in order.

    Raises:
        SourceNotFoundError: there is no such folder.
        MetadataError: there is no shard, one is missing, or one has a number that is none.
        ReadError: the folder cannot be read.

    """
    try:
        names = os.listdir(root)
    except FileNotFoundError:
        raise SourceNotFoundError(f"{root}: no such folder") from None
    except OSError as error:
        raise ReadError(error.errno, root) from error
    found = sorted((name for name in names if name.isdigit() and name.isascii()), key=lambda name: (len(name), name))
    for number, name in enumerate(found):
        if name != shard_name(number):
            raise MetadataError(f"{root}: shard {shard_name(number)} is missing, and {name[:60]} is there")
    if not found:
        raise MetadataError(f"{root}: no shards (folders 000000, 000001, …) in this folder")
    return [os.path.join(root, name) for name in found]
