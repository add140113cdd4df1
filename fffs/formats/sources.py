"""Sources: the record files that an argument of callers means, and opening them."""

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
from fffs.records.reopening import open_unreplaced
from fffs.records.sidecar import with_checksums
from fffs.records.source_file import SourceFile


def expand_sources(fname: PathLike | list[Any] | tuple[Any, ...]) -> list[str]:
    """The files that an argument means: a file, a folder, or a list of both.

    Of a folder its ``*.ffr``, sorted as ffrecord sorts them; or else its OFRecord
    parts (``part-0``, ``part-1``, …), by number; or else its TFRecord files, shards by number. Not recursive.

    Raises:
        SourceNotFoundError: a folder has none of these, or parts of it are missing.
        FormatError: two of its parts have one number.
        ReadError: it cannot be listed.

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
        "fffs pack makes one file of a folder"
    )


def open_files(paths: list[str], check_data: bool = True, form: str | None = None) -> list[SourceFile]:
    """Open record files and load their indexes; all of them or none.

    Args:
        paths: files of any formats.
        check_data: compare checksums of the metadata, where there are some.
        form: name of the format that all are of (``fffs.formats.table``); None: as each is recognised.

    """
    recognise = recogniser(form)
    opened: list[SourceFile] = []
    with closed_on_error(opened):
        for path in paths:
            opened.append(open_unreplaced(partial(_open, path, recognise, check_data)))
    return opened


def _open(path: str, recognise: Callable[[File], Format], check_data: bool) -> SourceFile:
    return load_file(LocalFile.open(path), recognise, check_data)


def load_file(file: File, recognise: Callable[[File], Format], check_data: bool = True) -> SourceFile:
    """An open file with its index; the file is closed when this raises.

    Args:
        file: of any kind.
        recognise: says which format it is of: ``find_format``, or what ``recogniser`` gives.
        check_data: compare checksums of the metadata, where there are some.

    """
    with closed_on_error((file,)):
        index = recognise(file).load_index(file, check_data)
        return SourceFile(file, with_checksums(file, index))
