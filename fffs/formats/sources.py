"""Sources: finds the record files that an argument stands for, and opens them."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from fffs.base.failures import reading
from fffs.base.paths import PathLike
from fffs.base.withblock import closed_on_error
from fffs.errors import SourceNotFoundError
from fffs.files.file import File
from fffs.files.local import LocalFile
from fffs.formats.ffrecord import SUFFIX
from fffs.formats.table import FORMATS, Format, recogniser
from fffs.objects.names import is_url
from fffs.objects.remote import RemoteFile
from fffs.records.reopening import open_unreplaced
from fffs.records.sidecar import with_checksums
from fffs.records.source_file import SourceFile


def expand_sources(fname: PathLike | list[Any] | tuple[Any, ...]) -> list[str]:
    """Return the record files that an argument stands for. The argument is a file, a folder, or a list of both.

    A folder stands for its ``*.ffr``, sorted as ffrecord does; or else its OFRecord parts (``part-0``, ``part-1``, …),
    by number; or else its TFRecord files, shards by number. Subfolders are ignored.

    Raises:
        SourceNotFoundError: a folder has none of these, or parts are missing.
        FormatError: two parts have the same number, or the number of a shard is too large.
        ReadError: a folder cannot be listed.

    """
    names = list(fname) if isinstance(fname, (list, tuple)) else [fname]
    files: list[str] = []
    for name in names:
        path = os.fsdecode(name)
        if not os.path.isdir(path):
            files.append(path)
            continue
        files += _files_of_folder(path)
    return files


def _files_of_folder(path: str) -> list[str]:
    with reading(path):
        entries = os.listdir(path)
    for form in FORMATS:
        if files := form.parts_of(path, entries):
            return files
    raise SourceNotFoundError(
        f"{path}: no {SUFFIX} files in this folder, nor OFRecord parts, nor TFRecord files; "
        "to pack it into one file, use fffs pack"
    )


def open_files(paths: list[str], check_data: bool = True, form: str | None = None) -> list[SourceFile]:
    """Open record files and load their indexes. If one fails, all are closed. The caller owns the result.

    Args:
        paths: files of any formats.
        check_data: compare the checksums of the metadata, and later those of the records, if any.
        form: name of the format of all files (``fffs.formats.table``). None: recognise each file.

    Raises:
        What ``LocalFile.open``, ``Format.load_index`` and ``with_checksums`` raise.

    """
    recognise = recogniser(form)
    opened: list[SourceFile] = []
    with closed_on_error(opened):
        for path in paths:
            opened.append(open_unreplaced(partial(_open, path, recognise, check_data)))
    return opened


def _open(path: str, recognise: Callable[[File], Format], check_data: bool) -> SourceFile:
    return load_file(open_source(path), recognise, check_data)


def open_source(path: str) -> File:
    """Open a file by its path, or an object by its URL. Raises as ``LocalFile.open`` and ``RemoteFile.open``."""
    return RemoteFile.open(path) if is_url(path) else LocalFile.open(path)


def load_file(file: File, recognise: Callable[[File], Format], check_data: bool = True) -> SourceFile:
    """Load the index of an open file. Takes over the file, and closes it if this raises.

    Args:
        file: of any kind.
        recognise: returns the format of the file: ``find_format``, or the result of ``recogniser``.
        check_data: as in ``open_files``.

    """
    with closed_on_error((file,)):
        index = recognise(file).load_index(file, check_data)
        return SourceFile(file, with_checksums(file, index), check_data)
