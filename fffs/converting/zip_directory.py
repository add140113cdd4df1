"""Reads the central directory of a zip archive with zipfile, but in bounded memory, and wherever unzip can read it."""

from __future__ import annotations

import io
import struct
import zipfile
from typing import Final

from fffs.base.failures import reading
from fffs.errors import MetadataError, UnsupportedError
from fffs.files.file import File
from fffs.files.holes import validate_written
from fffs.packing.names import Names

INFO: Final = 512  # bytes of memory for a member in zipfile, beside its name
ENTRY: Final = struct.Struct("<4s24x3H12x")
"""Magic, and the lengths of name, extra fields and comment, which follow in this order."""
EXTRA: Final = struct.Struct("<HH")
"""Kind and size of an extra field, whose data follows."""


def read_directory(source: File, names: Names) -> list[zipfile.ZipInfo]:
    """Return the members of an archive.

    Raises:
        MetadataError: the directory is damaged or missing.
        UnsupportedError: the names would take too much memory.
        ReadError: the archive cannot be read.

    """
    try:
        with reading(source.name), _Guarded(source, names) as file, zipfile.ZipFile(file) as archive:
            return archive.infolist()
    except (UnsupportedError, MetadataError):  # also a ValueError
        raise
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, OverflowError, EOFError) as error:
        raise MetadataError(
            f"{source.name}: the central directory at its end is damaged or missing ({error}); copy it again"
        ) from None


class _Guarded(io.BufferedReader):
    """An archive, as a file for zipfile, which reads the directory in one call. Raises if it has too many names."""

    def __init__(self, source: File, names: Names) -> None:
        super().__init__(source.stream())
        self._source, self._names = source, names

    def read(self, size: int | None = -1, /) -> bytes:
        """Read the directory, or other data around it, which does not begin with the magic of an entry."""
        self._names.refuse_beyond(size or 0)
        validate_written(self._source, self.tell(), size or 0, "the central directory")
        data = super().read(size)
        cut: list[tuple[int, int]] = []
        at = need = 0
        while at + ENTRY.size <= len(data):
            magic, name, extra, comment = ENTRY.unpack_from(data, at)
            if magic != b"PK\x01\x02":
                break
            need += INFO + name
            self._names.refuse_beyond(need)
            at += ENTRY.size + name + extra
            if extra and (found := _cut_field(data, at - extra, min(at, len(data)))):
                cut.append(found)
            at += comment
        return _without(data, cut) if cut else data


def _cut_field(data: bytes, at: int, end: int) -> tuple[int, int] | None:
    """Return (offset, bytes up to ``end``) of an extra field whose size reaches beyond ``end``, or None."""
    while at + EXTRA.size <= end:
        size = EXTRA.unpack_from(data, at)[1]
        if at + EXTRA.size + size > end:
            return at, end - at - EXTRA.size
        at += EXTRA.size + size
    return None


def _without(data: bytes, cut: list[tuple[int, int]]) -> bytes:
    """Return a directory with these extra fields replaced by ones of kind 0, so that they are ignored, as by unzip."""
    mended = bytearray(data)
    for at, size in cut:
        EXTRA.pack_into(mended, at, 0, size)
    return bytes(mended)
