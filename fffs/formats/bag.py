"""The Bag file format: recognises it, loads its index, encodes its table of offsets.

A Bag consists of records, one after another, and a table of their ends: in the same file (layouts ``v1`` and ``v2``) or
in a second file (``v3``). It has no magic number, no version and no checksum. See FORMATS.md.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from array import array
from collections.abc import Iterator

import numpy as np

from fffs.errors import (
    FormatError,
    MetadataError,
    SourceChangedError,
    UnfinishedFileError,
    UsageError,
)
from fffs.files.file import File
from fffs.files.holes import validate_written
from fffs.native.checksums import CHECK_NONE
from fffs.records.index import STEP, Int64Array, RecordIndex
from fffs.records.store import room

SUFFIX = ".bag"
COMPRESSED = ".bagz"
LAYOUTS = ("v1", "v2", "v3")
"""v1: n + 1 offsets after the records, the first is 0. v2: n ends after the records. v3: n ends in another file."""

OFFSET = struct.Struct("<Q")


def recognise(head: bytes, size: int, path: str) -> bool:
    """Return whether the file is a Bag, judging by its name: its content can be anything."""
    name = os.path.basename(path)
    return name.endswith((SUFFIX, COMPRESSED)) and not name.startswith("limits.")


def is_target(path: str) -> bool:
    """Return whether the name of a new file is that of a Bag. Raises UsageError for a compressed one."""
    if path.endswith(COMPRESSED):
        raise UsageError(f"{path}: compressed Bags cannot be written; choose a name that ends in {SUFFIX}")
    return path.endswith(SUFFIX)


def sidecars(path: str) -> tuple[str, ...]:
    """Return the paths at which the table of a Bag in layout v3 may be."""
    folder, name = os.path.split(path)
    limits = os.path.join(folder, f"limits.{name}")
    return (path.removesuffix(SUFFIX) + ".idx", limits) if name.endswith(SUFFIX) else (limits,)


def refuse_target(path: str, layout: str, place: int | None = None) -> None:
    """Raise UsageError if a new Bag cannot have this name. In layout v1, no old table may lie beside it.

    place: its folder, if that is open already.
    """
    if not path.endswith(SUFFIX):
        raise UsageError(f"{path}: the name of a Bag must end in {SUFFIX}")
    for table in sidecars(path) if layout == "v1" else ():
        with contextlib.suppress(OSError):
            os.stat(table if place is None else os.path.basename(table), dir_fd=place, follow_symlinks=False)
            raise UsageError(f"{path}: remove {table} first: readers would take it for the table of the new Bag")


def encode_table(ends: array[int]) -> bytes:
    """Return the table of layout v1 for records with these ends (in bytes, an array of type "Q")."""
    return bytes(8) + np.array(ends, "<u8").tobytes()


def load_index(file: File, check_data: bool = True, layout: str | None = None) -> RecordIndex:
    """Load and validate the index of a Bag.

    Args:
        file: the open file. The table of layout v3 is looked up beside it.
        check_data: unused, because there are no checksums.
        layout: one of ``LAYOUTS``, for files that look like another. None: v3 if a file with a table lies beside this
            one, else v1 if the table begins with 0, else v2.

    Raises:
        MetadataError: the table contradicts itself or the file's size.
        UnfinishedFileError: ``layout`` is v1, and the file is empty.
        SourceChangedError: the file was replaced meanwhile.
        ReadError: the operating system could not read.

    """
    return load(file, layout)[0]


def load(file: File, layout: str | None = None) -> tuple[RecordIndex, str]:
    """Return the index and the layout. As ``load_index``; raises UsageError for an unknown layout."""
    path = file.name
    if layout is not None and layout not in LAYOUTS:
        raise UsageError(f"{path}: there is no layout {layout!r}; choose one of {', '.join(LAYOUTS)}")
    if layout in (None, "v3"):
        for name in sidecars(path):
            if (table := _open_table(file, name)) is not None:
                with table, _unreplaced(file, table):
                    return load_with_table(file, table), "v3"
    if layout == "v3":
        hidden = ", or may not be read" if file.is_remote else ""
        raise MetadataError(
            f"{path}: the file with its table is missing{hidden}; copy {' or '.join(sidecars(path))}, too"
        )
    if layout is not None:
        return _load_tail(file, layout), layout
    with _unreplaced(file), _told_of_tables(file):
        layout = tail_layout(file)
        return _load_tail(file, layout), layout


def _open_table(file: File, name: str) -> File | None:
    """Open a file with the table of a Bag. None if there is none, or a page of a web server in its place."""
    table = file.open_beside(name)
    if table is None or not file.answers_with_pages:
        return table
    with contextlib.ExitStack() as stack:
        stack.enter_context(table)
        head = table.read_bytes(0, OFFSET.size, "the table")
        if OFFSET.unpack(head)[0] <= file.size if len(head) == OFFSET.size else not file.size:
            stack.pop_all()
            return table
    return None


@contextlib.contextmanager
def _told_of_tables(file: File) -> Iterator[None]:
    """Have the error of a Bag in a store without a table name the files that may have it: a store may hide them."""
    try:
        yield
    except MetadataError as error:
        if not file.is_remote:
            raise
        raise MetadataError(f"{error}; {' and '.join(sidecars(file.name))} do not exist, or may not be read") from None


@contextlib.contextmanager
def _unreplaced(file: File, table: File | None = None) -> Iterator[None]:
    """Raise SourceChangedError if a Bag was replaced while the block opened it.

    Its two files are replaced one after the other. In between, the records of one Bag could be read with the table of
    another, or with bytes at their end that look like a table. If both names refer to these files after the block, they
    did all the time: a writer removes the name of the file with the records until both files are new.
    """
    error: FormatError | None = None
    try:
        yield
    except FormatError as raised:
        error = raised
    tables = [table] if table else [found for name in sidecars(file.name) if (found := _open_table(file, name))]
    for found in tables if table is None else ():
        found.close()
    if not file.is_named() or (not table.is_named() if table else tables):
        raise SourceChangedError(f"{file.name}: was replaced while it was opened; open it again") from error
    if error:
        raise error


def tail_layout(file: File) -> str:
    """Return the layout, v1 or v2, of a Bag with the table at its end. A v2 Bag that begins with an empty record is
    taken for v1, because nothing in the file tells them apart. Compressed Bags are always v2.
    """
    size = file.current_size()
    if size == 0 or file.name.endswith(COMPRESSED):
        return "v2"
    return "v1" if _offset_at(file, _table_begin(file, size)) == 0 else "v2"


# ---------------------------------------------------------------- tables


def _load_tail(file: File, layout: str) -> RecordIndex:
    path, size = file.name, file.current_size()
    if size == 0 and layout == "v1":
        raise UnfinishedFileError(f"{path}: empty, because its writer was stopped before it finished; write it again")
    begin = _table_begin(file, size) if size else 0
    bounds = _read_bounds(path, file, begin, (size - begin) // 8, lead=layout == "v2")
    if int(bounds[0]) != 0:
        raise MetadataError(
            f"{path}: record 0 does not begin at byte 0 (table entry at byte {begin}); the table is damaged"
        )
    if int(bounds[-1]) != begin:
        raise MetadataError(f"{path}: the file changed while it was opened; open it again")
    return RecordIndex(path, bounds[:-1], bounds[1:], None, CHECK_NONE, size, format="Bag").validate()


def load_with_table(file: File, table: File) -> RecordIndex:
    """Return the index of a Bag in layout v3, from its two files. Raises as ``load_index``."""
    # An interrupted append leaves a partial entry, or records without an entry. Neither is counted.
    bounds = _read_bounds(file.name, table, 0, table.current_size() // 8, lead=True)
    # Read the size after the table: a writer appends the records first.
    size = file.current_size()
    return RecordIndex(file.name, bounds[:-1], bounds[1:], None, CHECK_NONE, size, format="Bag").validate()


def _table_begin(file: File, size: int) -> int:
    """Return where the table at the end of a file begins: at the end of the last record, which is its last entry."""
    if size < OFFSET.size:
        raise MetadataError(f"{file.name}: too short for a Bag ({size} bytes); was it written completely?")
    begin = _offset_at(file, size - OFFSET.size)
    if begin > size - OFFSET.size or (size - begin) % OFFSET.size:
        raise MetadataError(
            f"{file.name}: no table at its end (the entry at byte {size - OFFSET.size} says that it begins at byte "
            f"{begin}): the file is truncated, its writer was stopped before it finished, or it is not a Bag"
        )
    return begin


def _offset_at(file: File, position: int) -> int:
    data = file.read_bytes(position, OFFSET.size, f"the table at byte {position}")
    if len(data) != OFFSET.size:
        raise MetadataError(
            f"{file.name}: ends inside its table, at byte {position + len(data)}; it is truncated, copy it again"
        )
    return int(OFFSET.unpack(data)[0])


def _read_bounds(path: str, table: File, begin: int, entries: int, lead: bool) -> Int64Array:
    """Return the entries of a Bag's table as int64, which never decrease, with a 0 before them if ``lead``.

    table: the file with the entries, from byte ``begin`` on.
    """
    validate_written(table, begin, 8 * entries, "its table")
    first = 8 if lead else 0
    buffer = room(first + 8 * entries)
    buffer[:first] = 0
    if entries:
        status, _ = table.read_checked(begin, buffer[first:])
        if status == errno.ENODATA:
            raise MetadataError(f"{table.name}: the file ends inside its table; it is truncated, copy it again")
        if status:
            raise table.failure(status, "the table")
    bounds = buffer.view("<i8")
    for k in range(0, len(bounds) - 1, STEP):
        part = bounds[k : k + STEP + 1]
        good = part[1:] >= part[:-1]
        if not good.all():
            bad = k + int(np.argmin(good))
            end = int(bounds[bad + 1 : bad + 2].view("<u8")[0])
            raise MetadataError(
                f"{path}: record {bad} begins at byte {int(bounds[bad])} and ends at byte {end} "
                f"(table entry at byte {begin + 8 * (bad + 1) - first} of {table.name}); the table is damaged"
            )
    return bounds
