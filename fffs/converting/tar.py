"""Reads the members of tar archives of all formats, one after another.

tarfile is not used: it trusts the claimed size of an extended header, drops nanoseconds, and decodes names as text.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from fffs.errors import MetadataError, UnsupportedError
from fffs.formats.other_formats import TAR_MAGIC
from fffs.formats.streams import PIECE, Stream

BLOCK: Final = 512
HEADER_MAX: Final = 1 << 20  # bytes of an extended header
HEADERS_MAX: Final = 8  # extended headers before one member
HEADER: Final = struct.Struct("100s8s8s8s12s12s8sc100s8s32s32s8s8s155s12x")
USED: Final = (b"path", b"linkpath", b"size", b"mtime")  # keys of extended headers
SPARSE: Final = (b"GNU.sparse.", b"SCHILY.realsize")
NO_DATA: Final = (b"1", b"2", b"3", b"4", b"5", b"6")  # types without data, whose size is ignored
OLD_KINDS: Final = b"\x000123456"  # types of members before POSIX


@dataclass(frozen=True)
class Member:
    """A member. ``kind`` is its type: "0" for a regular file, "1" a hard link, "2" a symbolic link, "5" a folder; see
    tar(5) for others. ``place`` is the offset of its data in the archive.
    """

    name: bytes
    kind: bytes
    target: bytes
    mode: int
    mtime: int
    size: int
    place: int = 0


class _BadHeaderError(Exception):
    """A header is invalid; the message says why."""


def is_header(block: bytes, size: int | None, *, old: bool) -> bool:
    """Return whether a block is a tar header: its checksum is right, and it has the magic number of POSIX and GNU.

    old: also accept a header from before these, without that number. Other files may have a right sum of bytes by
    chance, so all fields of such a header must be valid. size: bytes of the file, or None if unknown.
    """
    if len(block) < BLOCK or not block[0]:
        return False
    try:
        _check(block)
        return block[TAR_MAGIC] == b"ustar" or (old and _is_old(block, size))
    except _BadHeaderError:
        return False


def _is_old(block: bytes, size: int | None) -> bool:
    """Return whether a header without a magic number has a name, valid numbers, a known type and a size that fits."""
    name, mode, uid, gid, length, mtime, _, kind, target, *_ = HEADER.unpack(block)
    for field in (name, target):
        if any(field[len(field.partition(b"\0")[0]) :]):
            return False  # names are padded with zeros
    numbers = [_number(field) for field in (mode, uid, gid, length, mtime) if _has_digit(field)]
    fits = len(numbers) == 5 and min(numbers[:4]) >= 0 and kind in OLD_KINDS
    return fits and (size is None or kind in NO_DATA or BLOCK + numbers[3] <= size)


def _has_digit(field: bytes) -> bool:
    return bool(field[0] & 0x80 or field.partition(b"\0")[0].strip(b" "))


def members(stream: Stream, warn: Callable[[str], None]) -> Iterator[Member]:
    """Yield the members of an archive. The caller may read some or all of a member's data before it asks for the next.
    warn: called with a line for data that is left out.

    Raises:
        MetadataError: the archive is damaged or truncated.
        UnsupportedError: it has a sparse member.
        ReadError: the operating system could not read.

    """
    shared: dict[bytes, bytes] = {}
    while True:
        begin = stream.position
        try:
            member = _next(stream, shared)
        except _BadHeaderError as error:
            raise MetadataError(f"{stream.path}: the member at byte {begin}: {error}; the archive is damaged") from None
        if member is None:
            _warn_of_more(stream, warn)
            return
        yield member
        end = member.place + -(-member.size // BLOCK) * BLOCK
        if not stream.skip(end - stream.position):
            name = os.fsdecode(member.name)
            raise MetadataError(f"{stream.path}: the archive ends inside {name!a:.200}; it is truncated, copy it again")


def _next(stream: Stream, shared: dict[bytes, bytes]) -> Member | None:
    """Return the next member with the values of its extended headers, or None at the end. POSIX headers take precedence
    over GNU's in any order, and an empty value cancels that of a global header.
    """
    extended: dict[bytes, bytes] = {}
    long: dict[bytes, bytes] = {}
    for _ in range(HEADERS_MAX):
        block = stream.read(BLOCK)
        if len(block) < BLOCK:
            raise MetadataError(f"{stream.path}: the archive ends without its end mark; it is truncated, copy it again")
        if not any(block):
            return None
        member = _parse(block)
        if member.kind in (b"x", b"g", b"X"):
            found = _parse_extended(_content(stream, member.size))
            (shared if member.kind == b"g" else extended).update(found)
        elif member.kind in (b"L", b"K"):
            key = b"path" if member.kind == b"L" else b"linkpath"
            long[key] = _content(stream, member.size).partition(b"\0")[0]
        else:
            extended = long | {key: value for key, value in (shared | extended).items() if value}
            if member.kind == b"S" or any(key.startswith(SPARSE) for key in extended):
                raise UnsupportedError(
                    f"{stream.path}: {(extended.get(b'path') or member.name)!a:.200} is a sparse member; unpack the "
                    "archive with tar and pack the folder"
                )
            return replace(_apply(member, extended), place=stream.position)
    raise _BadHeaderError(f"more than {HEADERS_MAX} extended headers")


def _warn_of_more(stream: Stream, warn: Callable[[str], None]) -> None:
    """Read to the end, so that checksums there are compared. Warn of data after the end mark, or half of a mark."""
    second = stream.read(BLOCK)
    more = any(second)
    while not more and (piece := stream.read(PIECE)):
        more = any(piece)
    stream.drain()
    mark = "its end mark" if len(second) == BLOCK and not any(second) else "a lone block of zeros"
    if more:
        warn(f"{stream.path}: more follows {mark} and is left out, as tar does without --ignore-zeros")
    elif len(second) < BLOCK:
        warn(f"{stream.path}: ends with {mark}; it may be truncated")


def _content(stream: Stream, size: int) -> bytes:
    """Read the data of an extended header."""
    if size > HEADER_MAX:
        raise _BadHeaderError(f"an extended header of {size} bytes")
    data = stream.read(size)
    if len(data) < size or not stream.skip(-size % BLOCK):
        raise MetadataError(f"{stream.path}: the archive ends in an extended header; it is truncated, copy it again")
    return data


def _check(block: bytes) -> None:
    """Compare a header's checksum, a sum of bytes, which some programs add as signed. Other numbers may be blank."""
    if not _has_digit(block[148:156]):
        raise _BadHeaderError("its header has no checksum")
    stored = _number(block[148:156])
    unsigned = sum(block) - sum(block[148:156]) + 8 * 32
    if stored != unsigned and stored != unsigned - 256 * sum(byte > 127 for byte in block[:148] + block[156:]):
        raise _BadHeaderError("the checksum of its header is wrong")


def _parse(block: bytes) -> Member:
    """Parse a header, without extended headers."""
    _check(block)
    name, mode, _, _, size, mtime, _, kind, target, magic, _, _, _, _, prefix = HEADER.unpack(block)
    name, target, prefix = (field.partition(b"\0")[0] for field in (name, target, prefix))
    if magic == b"ustar\x0000" and prefix:
        name = prefix + b"/" + name
    if kind in (b"\0", b"7"):
        kind = b"0"
    length = 0 if kind in NO_DATA else _number(size)
    if length < 0:
        raise _BadHeaderError(f"its size is {length}")
    return Member(name, kind, target, _number(mode) & 0o7777, _number(mtime) * 10**9, length)


def _number(field: bytes) -> int:
    """Parse a number: octal, or binary if the first bit is set."""
    if field[0] & 0x80:
        number = int.from_bytes(field, "big") & ((1 << (8 * len(field) - 1)) - 1)
        sign = 1 << (8 * len(field) - 2)
        return number - 2 * sign if number & sign else number
    text = field.partition(b"\0")[0].strip(b" ")
    if not all(0x30 <= byte <= 0x37 for byte in text):
        raise _BadHeaderError("a field of its header is not an octal number")
    return int(text or b"0", 8)


def _parse_extended(data: bytes) -> dict[bytes, bytes]:
    """Parse the records ``LENGTH KEY=VALUE\\n`` of a POSIX extended header."""
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(data):
        blank = data.find(b" ", at, at + 20)
        digits = data[at:blank] if blank > at else b""
        end = at + int(digits) if digits.isdigit() else 0
        if not blank < end - 1 < len(data) or data[end - 1 : end] != b"\n":
            raise _BadHeaderError("its extended header is not a list of keys and values")
        key, equals, value = data[blank + 1 : end - 1].partition(b"=")
        if not equals:
            raise _BadHeaderError("a key of its extended header has no value")
        if key in USED or key.startswith(SPARSE):
            found[key] = value
        at = end
    return found


def _apply(member: Member, extended: dict[bytes, bytes]) -> Member:
    """Return a member with the values of its extended headers, which replace those of its own header."""
    name = extended.get(b"path") or member.name
    # Tars before 1988 mark folders with a slash. The whole name counts: a header may have only its first 100 bytes.
    kind = b"5" if member.kind == b"0" and name.endswith(b"/") else member.kind
    changed = replace(member, name=name, kind=kind, target=extended.get(b"linkpath") or member.target)
    if b"size" in extended and member.kind not in NO_DATA:
        if not extended[b"size"].isdigit() or len(extended[b"size"]) > 18:
            raise _BadHeaderError("its extended header has an invalid size")
        changed = replace(changed, size=int(extended[b"size"]))
    if b"mtime" in extended:
        changed = replace(changed, mtime=_time(extended[b"mtime"]))
    return changed


def _time(text: bytes) -> int:
    """Convert a decimal number of seconds to nanoseconds."""
    sign = -1 if text.startswith(b"-") else 1
    whole, _, part = text.removeprefix(b"-").partition(b".")
    if not (whole + part).isdigit() or len(whole) > 20:
        raise _BadHeaderError("its extended header has an invalid time")
    nanoseconds = sign * (int(whole or b"0") * 10**9 + int(part[:9].ljust(9, b"0")))
    return nanoseconds - (sign < 0 and any(part[9:].strip(b"0")))  # rounded down, as by tar
