"""What a source is, by its content first; the names of all kinds."""

from __future__ import annotations

import os
from typing import Final

from fffs.base.failures import reading
from fffs.converting.archives import is_tar, is_zip
from fffs.files.atomic import CHECKSUMS
from fffs.files.file import File
from fffs.files.local import LocalFile
from fffs.formats import bag, ffrecord, tfrecord
from fffs.formats.part_names import PATTERN
from fffs.formats.table import BAG, FFRECORD, FORMATS, TFRECORD, find_format

RECORDS: Final = tuple(form.name for form in FORMATS)
GRANULAR: Final = "granular"
FOLDER: Final = "folder"
ARCHIVES: Final = ("tar", "zip")
SOURCES: Final = (*RECORDS, GRANULAR, *ARCHIVES, FOLDER)
DESTINATIONS: Final = (*RECORDS, GRANULAR)
COUNTED: Final = {GRANULAR: "row", FOLDER: "file"} | dict.fromkeys(ARCHIVES, "file")
"""What is counted of a source, where it is not records."""

SIDECARS: Final = (*tfrecord.SIDECARS, CHECKSUMS)


def kind_of_source(path: str) -> str:
    """One of SOURCES. Raises SourceNotFoundError, UsageError, ReadError."""
    if os.path.isdir(path):
        return _kind_of_folder(path)
    if not os.path.lexists(path) and (PATTERN.fullmatch(os.path.basename(path)) or _has_shards(path)):
        return TFRECORD.name
    with LocalFile.open(path) as file:
        return _kind_of_file(file)


def _kind_of_file(file: File) -> str:
    path = file.name
    if bag.recognise(b"", 0, path):
        return BAG.name  # a record of a Bag may be anything, and it begins with one
    if tfrecord.is_head(file.read_bytes(0, tfrecord.HEAD.size)):
        return TFRECORD.name  # nothing else begins with such a checksum
    named = any(form.is_part(os.path.basename(path)) for form in FORMATS)
    archive = "tar" if is_tar(file, named=named) else "zip" if is_zip(file) else None
    if archive is None:
        return find_format(file).name
    return FFRECORD.name if ffrecord.is_certain(file) else archive


def _has_shards(path: str) -> bool:
    """Whether a name is what shards have in common."""
    folder, stem = os.path.split(path)
    try:
        return any(name.startswith(f"{stem}-0") and "-of-" in name for name in os.listdir(folder or "."))
    except OSError:
        return False


def _kind_of_folder(path: str) -> str:
    """A folder with nothing but parts in it is taken for these, any other for what it is."""
    with reading(path):
        names = [name for name in os.listdir(path) if not name.startswith(".") and not name.endswith(SIDECARS)]
    from fffs.granular.shards import data_set_folders  # granular takes long to import: for a folder at most

    if data_set_folders(path):
        return GRANULAR
    return next((form.name for form in FORMATS if names and all(map(form.is_part, names))), FOLDER)
