"""How ranges of a file are read from a file system of fsspec: some of these would read a whole file for each."""

from __future__ import annotations

import inspect
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import Any, Final

Read = Callable[[Any, str, int, int, dict[str, str]], Any]
"""Returns a range of a file: of a file system, the path, the begin, the end, and options for opening the file."""

_HEAD: Final = 30  # bytes in front of a member of a zip archive, before its name and an extra field
_ENCRYPTED: Final = 1
_PIECE: Final = 1 << 20  # bytes


def reader_of(fs: Any) -> Read:
    """Return what reads ranges of one file, of this file system or another one that is made like it."""
    if _is_zip(fs):
        return Member()
    return cat_file if _knows_ranges(fs) else _read_open


def cat_file(fs: Any, path: str, begin: int, end: int, options: dict[str, str]) -> Any:
    """Let a file system return a range."""
    return fs.cat_file(path, start=begin, end=end, **options)


def _read_open(fs: Any, path: str, begin: int, end: int, options: dict[str, str]) -> Any:
    with fs.open(path, "rb", **options) as file:
        file.seek(begin)
        return file.read(end - begin)


def _knows_ranges(fs: Any) -> bool:
    """Whether a file system returns ranges of files, and not whole ones for any, as that of sshfs does.

    One that has no files to open is believed to.
    """
    if getattr(getattr(type(fs), "_open", None), "__module__", "") == "fsspec.spec":
        return True
    method = getattr(fs, "_cat_file" if fs.async_impl else "cat_file", None)
    try:
        parameters = inspect.signature(method).parameters.values() if method else ()
    except (TypeError, ValueError):  # it does not tell
        return True
    return not parameters or any(one.name == "start" or one.kind is one.VAR_POSITIONAL for one in parameters)


def _is_zip(fs: Any) -> bool:
    return type(fs).__module__ == "fsspec.implementations.zip" and type(getattr(fs, "zip", None)) is zipfile.ZipFile


class Member:
    """Reads ranges of a member of a zip archive from the archive, if it is not compressed.

    Before Python 3.13, zipfile reads all that is in front of a range. For one thread at a time.
    """

    def __init__(self) -> None:
        self._begin: int | None = None  # of the member in the archive

    def __call__(self, fs: Any, path: str, begin: int, end: int, options: dict[str, str]) -> Any:
        """See ``Read``."""
        if (member := _stored(fs, path)) is None:
            return cat_file(fs, path, begin, end, options)
        archive = fs.zip.fp
        if self._begin is None:
            self._begin = _begin_of(archive, member)
        archive.seek(self._begin + begin)
        return archive.read(max(min(end, member.compress_size) - begin, 0))

    def is_damaged(self, fs: Any, path: str) -> bool:
        """Read the member, and return whether its CRC-32 is not that of the archive. False if it is compressed."""
        member, crc = _stored(fs, path), 0
        for begin in range(0, member.compress_size if member else 0, _PIECE):
            crc = zlib.crc32(self(fs, path, begin, begin + _PIECE, {}), crc)
        return member is not None and crc != member.CRC


def _stored(fs: Any, path: str) -> zipfile.ZipInfo | None:
    """Return a member that is not compressed, or None."""
    try:
        member: zipfile.ZipInfo = fs.zip.getinfo(path.lstrip("/"))
    except KeyError:  # fsspec says it
        return None
    return None if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & _ENCRYPTED else member


def _begin_of(archive: Any, member: zipfile.ZipInfo) -> int:
    """Return where a member begins, which only its own header tells."""
    archive.seek(member.header_offset)
    head = archive.read(_HEAD)
    if len(head) < _HEAD or not head.startswith(b"PK\x03\x04"):
        raise zipfile.BadZipFile(f"there is no header of {member.filename}")
    return int(member.header_offset + _HEAD + sum(struct.unpack_from("<HH", head, _HEAD - 4)))
