"""The table of formats of other libraries that are read, with a row for each."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from fffs.converting.foreign.array_record_file import ArrayRecordItems, is_array_record
from fffs.converting.foreign.items import ForeignItems, opener
from fffs.converting.foreign.json_file import load_object
from fffs.converting.foreign.lmdb_file import LmdbItems, headers, is_lmdb
from fffs.converting.foreign.mds_folder import MdsItems, expand_mds, is_mds
from fffs.converting.foreign.parquet_items import ParquetItems
from fffs.converting.foreign.table_items import ArrowItems
from fffs.errors import MetadataError, SourceNotFoundError, UsageError
from fffs.files.file import File
from fffs.formats.other_formats import ARROW as ARROW_HEAD
from fffs.formats.other_formats import PARQUET as PARQUET_HEAD
from fffs.formats.part_names import complete_sets
from fffs.objects.locations import is_folder, names_in, open_file

STATE: Final = "state.json"  # of a data set that Hugging Face's library saved
INFO: Final = "dataset_info.json"
SPLITS: Final = "dataset_dict.json"
PARQUET_END: Final = re.compile(r"\.parquet$")
ARROW_END: Final = re.compile(r"\.arrow$")
ARRAY_RECORD_END: Final = re.compile(r"\.array_record(-[0-9]+-of-[0-9]+)?$")
HIDDEN: Final = (".", "_")
BESIDE: Final = re.compile(r"_SUCCESS|_(common_)?metadata|_(started|committed)_[0-9]+|\..*\.crc", re.DOTALL)
LARGEST_JSON: Final = 16 << 20


@dataclass(frozen=True)
class Import:
    """A format of another library. Callers choose it by ``name``.

    counted: what it consists of.
    is_head(head): whether the first 64 bytes of a file identify this format.
    is_folder(path, names): whether a folder with these names is of this format. Raises ReadError.
    expand(path): the files that a path stands for, in order. Raises SourceNotFoundError, FormatError, ReadError.
    open(paths, shown): opens them. Raises UsageError if a library is missing, FormatError, ReadError.
    has_names: whether the content can become the files of a packed folder.
    state(file): what changes with the content where the time of modification may not, or None. Raises ReadError.
    part: in the names of its files, if a folder that has such files and others may be meant as records or as files.
    """

    name: str
    counted: str
    is_head: Callable[[bytes], bool]
    is_folder: Callable[[str, Sequence[str]], bool]
    expand: Callable[[str], list[str]]
    open: Callable[[Sequence[str], str], ForeignItems]
    has_names: bool = True
    state: Callable[[File], object] | None = None
    part: re.Pattern[str] | None = None


def _all_end(ending: re.Pattern[str]) -> Callable[[str, Sequence[str]], bool]:
    """Return whether all files of a folder are those of a format, but for what Spark and Hadoop write beside them."""

    def all_end(path: str, names: Sequence[str]) -> bool:
        named = [name for name in names if not BESIDE.fullmatch(name)]
        return bool(named) and all(ending.search(name) and not name.startswith(HIDDEN) for name in named)

    return all_end


def _is_arrow(path: str, names: Sequence[str]) -> bool:
    """Return whether a folder has files of Arrow only, or what Hugging Face's library saves, and nothing else. A data
    set without rows has all descriptions, and may have no file.
    """
    if SPLITS in names or _all_end(ARROW_END)(path, names):
        return True
    others = [name for name in names if name not in (STATE, INFO)]
    is_complete = bool(others) or len(names) == 2
    return STATE in names and is_complete and all(name.endswith(".arrow") for name in others)


def _expand_ending(path: str, ending: re.Pattern[str]) -> list[str]:
    if not is_folder(path):
        return [path]
    found = complete_sets(
        path, (name for name in names_in(path) if ending.search(name) and not name.startswith(HIDDEN))
    )
    if not found:
        raise SourceNotFoundError(f"{path}: no files in this folder whose names match {ending.pattern}")
    return [os.path.join(path, name) for name in found]


def _expand_arrow(path: str) -> list[str]:
    """Return the files of Arrow, which for a data set of Hugging Face's library its state lists."""
    names = names_in(path) if is_folder(path) else []
    if SPLITS in names:
        splits = ", ".join(sorted(name for name in names if is_folder(os.path.join(path, name))))
        raise UsageError(f"{path}: has several splits ({splits}); name the folder of one")
    if STATE not in names:
        return _expand_ending(path, ARROW_END)
    with open_file(os.path.join(path, STATE)) as file:
        state = load_object(file, LARGEST_JSON)
    try:
        found = [str(item["filename"]) for item in state["_data_files"]]
    except (KeyError, TypeError):
        raise MetadataError(f"{path}/{STATE}: does not list the files of the data set") from None
    if len(set(found)) < len(found):
        raise MetadataError(f"{path}/{STATE}: lists a file several times")
    if any(os.path.basename(name) != name or name in ("", ".", "..") or "\0" in name for name in found):
        raise MetadataError(f"{path}/{STATE}: lists files outside of the folder")
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise UsageError(f"{path}: has an order of its own beside its rows; save the data set after flatten_indices()")
    return [os.path.join(path, name) for name in found]


PARQUET: Final = Import(
    "parquet",
    "row",
    is_head=lambda head: head.startswith(PARQUET_HEAD),
    is_folder=_all_end(PARQUET_END),
    expand=lambda path: _expand_ending(path, PARQUET_END),
    open=opener(ParquetItems),
)
ARROW: Final = Import(
    "arrow",
    "row",
    is_head=lambda head: head.startswith(ARROW_HEAD),
    is_folder=_is_arrow,
    expand=_expand_arrow,
    open=opener(ArrowItems),
)
LMDB: Final = Import(
    "lmdb",
    "value",
    is_head=is_lmdb,
    is_folder=lambda path, names: "data.mdb" in names and not set(names) - {"data.mdb", "lock.mdb"},
    expand=lambda path: [os.path.join(path, "data.mdb")] if is_folder(path) else [path],
    open=opener(LmdbItems),
    state=headers,
)

ARRAY_RECORD: Final = Import(
    "array_record",
    "record",
    is_head=is_array_record,
    is_folder=_all_end(ARRAY_RECORD_END),
    expand=lambda path: _expand_ending(path, ARRAY_RECORD_END),
    open=opener(ArrayRecordItems),
    has_names=False,
    part=ARRAY_RECORD_END,
)

MDS: Final = Import(
    "mds",
    "file",
    is_head=lambda head: False,
    is_folder=is_mds,
    expand=expand_mds,
    open=opener(MdsItems),
)

IMPORTS: Final = [PARQUET, ARROW, LMDB, ARRAY_RECORD, MDS]
"""All formats of other libraries that are read."""


def import_named(name: str | None) -> Import | None:
    """Return the format of that name, or None."""
    return next((row for row in IMPORTS if row.name == name), None)


def import_of_file(head: bytes, path: str) -> Import | None:
    """Return the format of a file that begins with head, or None. A stream of Arrow is known by its name only."""
    found = next((row for row in IMPORTS if row.is_head(head)), None)
    return found or (ARROW if path.endswith(".arrow") else None)


def import_of_folder(path: str, names: Sequence[str]) -> Import | None:
    """Return the format of a folder with these names, or None. Raises ReadError."""
    return next((row for row in IMPORTS if row.is_folder(path, names)), None)
