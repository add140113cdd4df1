"""Sources: finds the record files that an argument stands for, and opens them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from fffs.base.cache_settings import listed_once
from fffs.base.paths import PathLike
from fffs.base.together import together
from fffs.base.withblock import closed_on_error
from fffs.errors import SourceNotFoundError
from fffs.files.file import File
from fffs.formats.ffrecord import SUFFIX
from fffs.formats.table import FORMATS, Format, recogniser
from fffs.objects.fsspec_url import folder_and_chain, without_file_scheme
from fffs.objects.locations import is_folder, names_in, open_file
from fffs.objects.names import is_remote
from fffs.records.reopening import open_unreplaced
from fffs.records.sidecar import with_checksums
from fffs.records.source_file import SourceFile

OPENERS: Final = 32
"""Objects that are opened at a time."""
LOCAL_OPENERS: Final = 4
"""Local files that are opened at a time, if there are MANY: two cores are faster, and a disk serves several."""
MANY: Final = 16


def expand_sources(fname: PathLike | list[Any] | tuple[Any, ...], prefix: str | None = None) -> list[str]:
    """Return the record files that an argument stands for. The argument is a file, a folder, or a list of both.

    A folder, or a URL that ends in a slash, stands for its ``*.ffr``, sorted as ffrecord does; or else its OFRecord
    parts (``part-0``, ``part-1``, …), by number; or else its TFRecord files, shards by number. Subfolders are ignored.

    prefix: of the names of OFRecord parts, for which alone a folder then stands. It passed ``format_with``.

    Raises:
        SourceNotFoundError: a folder has none of these, or parts are missing.
        FormatError: two parts have the same number, or the number of a shard is too large.
        ReadError: a folder cannot be listed.

    """
    names = list(fname) if isinstance(fname, (list, tuple)) else [fname]
    files: list[str] = []
    for name in names:
        path = without_file_scheme(os.fsdecode(name))
        if is_folder(path):
            folder, chain = folder_and_chain(path)
            files += [file + chain for file in _files_among(folder, names_in(path), prefix)]
        else:
            files.append(path)
    return files


def _files_among(path: str, entries: list[str], prefix: str | None) -> list[str]:
    for form in FORMATS:
        if prefix is not None:
            if form.parts_named:
                return form.parts_named(path, entries, prefix)
        elif files := form.parts_of(path, entries):
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

    def open_one(path: str) -> SourceFile:
        return open_unreplaced(partial(_open, path, recognise, check_data))

    with listed_once() if any(map(is_remote, paths)) else contextlib.nullcontext():
        return together(open_one, paths, openers(paths), SourceFile.close)


def openers(paths: Sequence[str]) -> int:
    """Return in how many threads files are opened. Each needs several requests or reads, one after the other."""
    if any(map(is_remote, paths)):
        return OPENERS
    return LOCAL_OPENERS if len(paths) >= MANY else 1


def _open(path: str, recognise: Callable[[File], Format], check_data: bool) -> SourceFile:
    return load_file(open_file(path), recognise, check_data)


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
