"""Checks of what is in one record file: its format, its names, and how it can be mounted. Records are not read."""

from __future__ import annotations

import stat
from collections.abc import Iterator

from fffs.base.text import plural
from fffs.base.withblock import closed_on_error
from fffs.cli.checks.finding import Finding, good, hint, problem
from fffs.errors import FffsError, FormatError
from fffs.formats.ffrecord import SUFFIX
from fffs.formats.sources import open_files
from fffs.formats.table import format_of
from fffs.layouts import packed
from fffs.records.source_file import SourceFile

COPY = "copy it again, or restore it from a backup"


def check_content(path: str) -> Iterator[Finding]:
    """Yield what is known of the records and the names in a file. Raises ReadError."""
    try:
        (file,) = open_files([path])
    except FormatError as error:
        if path.endswith(SUFFIX):
            yield problem("format", _why(error, path), COPY)
        else:
            yield hint(
                "format", _why(error, path), "name a record file, such as a pack; fffs convert reads archives, too"
            )
        return
    with closed_on_error((file,)):
        yield from _look_into(file)
    file.close()


def _why(error: FffsError, path: str) -> str:
    return str(error).removeprefix(f"{path}: ")


def _look_into(file: SourceFile) -> Iterator[Finding]:
    index, form = file.index, format_of(file.index)
    yield good("format", f"{index.format}, {plural(len(index), 'record')}, which fffs verify reads and compares")
    if index.truncated:
        lost = ", and its names, if it was a packed folder" if form is not None and form.holds_trees else ""
        found = f"truncated: {len(index) - index.count_readable()} of {plural(len(index), 'record')} are lost{lost}"
        yield problem("names", found, COPY)
        yield good("mount", "shows the records that are left, as numbered files")
    elif packed.is_packed(file):
        yield from _look_at_names(file)
    else:
        yield good("names", "none: it is no packed folder; records have numbers")
        yield good("mount", "with a daemon, as numbered files; -o kernel is for packs")


def _look_at_names(file: SourceFile) -> Iterator[Finding]:
    path = file.index.path
    try:
        loaded = packed.load(file)
    except FormatError as error:
        yield problem("names", _why(error, path), f"{COPY}; fffs unpack --keep-going restores numbered files")
        yield problem("mount", "refused: its names are damaged", "see above")
        return
    kinds = loaded.tree.kinds
    files, folders = (int((kinds == kind).sum()) for kind in (stat.S_IFREG, stat.S_IFDIR))
    whose = "" if loaded.lossless else ", of a pack of ffrecord, without modes and times"
    yield good("names", f"intact: {plural(files, 'file')} in {plural(folders, 'folder')}{whose}")
    if loaded.file.index.alignment:
        yield good("mount", "with a daemon, or with -o kernel")
    else:
        yield good("mount", "with a daemon; -o kernel needs a pack of fffs pack --align")
