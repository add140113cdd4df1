"""Kinds of sources and results, and finding out which kind a source is."""

from __future__ import annotations

import os
from typing import Final

from fffs.base.failures import reading
from fffs.base.part_sets import MANIFEST
from fffs.converting.archives import is_tar, is_zip
from fffs.converting.foreign.exports import EXPORTS, export_named
from fffs.converting.foreign.imports import IMPORTS, import_named, import_of_file, import_of_folder
from fffs.errors import UsageError
from fffs.files.file import File
from fffs.files.sidecar_names import SIDECARS
from fffs.formats.sources import expand_sources
from fffs.formats.table import FORMATS, find_format, format_named, named_format
from fffs.granular.shards import data_set_folders
from fffs.objects.fsspec_url import file_part, is_fsspec_url
from fffs.objects.locations import exists, is_folder, list_folder, open_file
from fffs.objects.names import is_url

GRANULAR: Final = "granular"
FOLDER: Final = "folder"
ARCHIVES: Final = ("tar", "zip")
COUNTED: Final = {
    GRANULAR: "row",
    FOLDER: "file",
    **dict.fromkeys(ARCHIVES, "file"),
    **{row.name: row.counted for row in IMPORTS},
}
"""The units in which sources are counted, if not records."""


def _holds_trees(to: str | None) -> bool:
    """Return whether a result can be a packed folder. None: the default, which is one."""
    return to is None or (is_records(to) and format_named(to).holds_trees)


def becomes_files(source: str, to: str | None, column: str | None) -> bool:
    """Return whether what a format of another library holds becomes the files of a packed folder. column: chosen."""
    row = import_named(source)
    return row is not None and row.has_names and not column and _holds_trees(to)


def counted(source: str, destination: str, column: str | None) -> str:
    """Return the unit in which a conversion is counted. column: the one that was chosen."""
    if becomes_files(source, destination, column):
        return COUNTED[FOLDER]
    export = export_named(destination)
    return COUNTED.get(source) or (export.counted if export else "record")


def is_records(kind: str) -> bool:
    """Return whether a kind is a format of record files."""
    return any(form.name == kind for form in FORMATS)


def sources() -> list[str]:
    """Return all kinds of sources: formats of record files, and others."""
    return [*(form.name for form in FORMATS), GRANULAR, *ARCHIVES, FOLDER, *(row.name for row in IMPORTS)]


def destinations() -> list[str]:
    """Return all kinds of results."""
    return [*(form.name for form in FORMATS), GRANULAR, *(export.name for export in EXPORTS)]


def kind_of_source(path: str, result: str = "") -> str:
    """Return the kind of a source, one of ``sources()``.

    result: a file to be written. If it is in the folder, among other files, it does not count as a part.

    Raises SourceNotFoundError, UsageError, ReadError.
    """
    if is_fsspec_url(path):  # a folder is one of record files
        with open_file(expand_sources(path)[0]) as file:
            return _kind_of_file(file)
    if is_folder(path):
        inside = (
            bool(result) and not is_url(path) and os.path.realpath(os.path.dirname(result)) == os.path.realpath(path)
        )
        return _kind_of_folder(path, os.path.basename(result) if inside else "")
    if not exists(path):
        for form in FORMATS:
            if form.is_set(path):
                return form.name
    with open_file(path) as file:
        return _kind_of_file(file)


def _kind_of_file(file: File) -> str:
    """Return the kind of a file. A format that its name or content shows for certain takes precedence over archives."""
    head = file.read_bytes(0, 64)
    form = named_format(file.name) or next((form for form in FORMATS if form.has_head(head)), None)
    if form is not None:
        return form.name
    if row := import_of_file(head, file_part(file.name)):
        return row.name
    named = any(form.is_part(os.path.basename(file_part(file.name))) for form in FORMATS)
    archive = "tar" if is_tar(file, named=named) else "zip" if is_zip(file) else None
    if archive is None:
        return find_format(file).name
    return next((form.name for form in FORMATS if form.is_certain(file)), archive)


def _kind_of_folder(path: str, ignored: str) -> str:
    """Return the kind of a folder: data set, parts of one format if it holds nothing else, or plain folder.

    Raises UsageError: it holds parts and other files, so that it may be meant as either.
    """
    endings = (MANIFEST, *SIDECARS, *(ending for form in FORMATS for ending in form.sidecar_endings))
    with reading(path):
        names = [name for name in list_folder(path) if not name.startswith(".") and not name.endswith(endings)]
    if data_set_folders(path):
        return GRANULAR
    if row := import_of_folder(path, [name for name in names if name != ignored]):
        return row.name
    for form in FORMATS:
        parts = list(filter(form.is_part, names))
        if parts and len(parts) == len(names):
            return form.name
        if any(part != ignored for part in parts):
            raise _mixed(path, f"parts of a {form.title} set", form.name, parts, names)
    for row in IMPORTS:
        parts = [name for name in names if row.part and row.part.search(name)]
        if any(part != ignored for part in parts):
            raise _mixed(path, f"files of {row.name}", row.name, parts, names)
    return FOLDER


def _mixed(path: str, parts: str, kind: str, found: list[str], names: list[str]) -> UsageError:
    other = min(set(names).difference(found))
    return UsageError(
        f"{path}: has {parts} ({min(found)}) and others ({other}); "
        f"--from {kind} converts the records of the parts, --from {FOLDER} packs all files"
    )
