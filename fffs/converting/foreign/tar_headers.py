"""Headers of tar archives, as POSIX defines them. tarfile makes them, too, but takes several times as long."""

from __future__ import annotations

import stat
from typing import Final

from fffs.converting.foreign.exported import ExportEntry

BLOCK: Final = 512
NAME: Final = 100  # bytes that a header has for a name, and for the target of a link
LARGEST: Final = 8**11  # sizes and times from here on need an extended header
FILE, LINK, SYMLINK, FOLDER, EXTENDED = b"0", b"1", b"2", b"5", b"x"


def header_of(entry: ExportEntry, linked: bytes | None = None) -> bytes:
    """Return the header of a member, with an extended one if the name, size or time needs that.

    linked: the path of an earlier member, of which this is a hard link.
    """
    name, target, kind, size = entry.path or b".", b"", FILE, entry.size
    if stat.S_ISDIR(entry.mode):
        name, kind = name + b"/", FOLDER
    elif linked is not None:
        target, kind, size = linked, LINK, 0
    elif stat.S_ISLNK(entry.mode):
        target, kind = entry.target, SYMLINK
    seconds = entry.mtime // 10**9
    extended = _extended(name, target, size, entry.mtime)
    seconds = seconds if 0 <= seconds < LARGEST else 0
    return extended + _block(name, stat.S_IMODE(entry.mode), size if size < LARGEST else 0, seconds, kind, target)


def _extended(name: bytes, target: bytes, size: int, mtime: int) -> bytes:
    """Return the extended header for what the fields of a header cannot hold, or nothing."""
    records = []
    texts = [(key, text) for key, text in ((b"path", name), (b"linkpath", target)) if not _fits(text)]
    if texts and not all(map(_is_utf8, (name, target))):
        records.append(_record(b"hdrcharset", b"BINARY"))
    records += [_record(key, text) for key, text in texts]
    if size >= LARGEST:
        records.append(_record(b"size", b"%d" % size))
    if mtime % 10**9 or not 0 <= mtime < LARGEST * 10**9:
        seconds, rest = divmod(abs(mtime), 10**9)
        records.append(_record(b"mtime", b"%b%d.%09d" % (b"-" * (mtime < 0), seconds, rest)))
    if not records:
        return b""
    data = b"".join(records)
    return _block(b"././@PaxHeader", 0o644, len(data), 0, EXTENDED, b"") + data + bytes(-len(data) % BLOCK)


def _fits(text: bytes) -> bool:
    return len(text) <= NAME and text.isascii()


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _record(key: bytes, value: bytes) -> bytes:
    """Return a record of an extended header, which begins with its own length."""
    rest = b" %b=%b\n" % (key, value)
    size = len(rest)
    while len(b"%d" % size) + len(rest) != size:
        size = len(b"%d" % size) + len(rest)
    return b"%d%b" % (size, rest)


def _block(name: bytes, mode: int, size: int, seconds: int, kind: bytes, target: bytes) -> bytes:
    start = b"%b%07o\0000000000\0000000000\0%011o\0%011o\0" % (name[:NAME].ljust(NAME, b"\0"), mode, size, seconds)
    end = b"%b%bustar\00000" % (kind, target[:NAME].ljust(NAME, b"\0"))
    checksum = sum(start) + sum(end) + 8 * ord(" ")
    return b"%b%06o\0 %b%b" % (start, checksum, end, bytes(BLOCK - 148 - 8 - len(end)))
