"""Reading tar archives: the members, one after another, whatever tar wrote them.

Not by tarfile, which believes how long an extended header claims to be, keeps no nanoseconds, and takes names for text.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from fffs.errors import MetadataError, UnsupportedError
from fffs.formats.strangers import TAR_MAGIC
from fffs.formats.streams import PIECE, Stream

BLOCK: Final = 512
HEADER_MAX: Final = 1 << 20  # bytes of an extended header
HEADERS_MAX: Final = 8  # extended headers before one member
HEADER: Final = struct.Struct("100s8s8s8s12s12s8sc100s8s32s32s8s8s155s12x")
USED: Final = (b"path", b"linkpath", b"size", b"mtime")  # keys of extended headers
SPARSE: Final = (b"GNU.sparse.", b"SCHILY.realsize")
NO_DATA: Final = (b"1", b"2", b"3", b"4", b"5", b"6")  # types whose size means nothing
OLD_KINDS: Final = b"\x000123456"  # types of members before POSIX


@dataclass(frozen=True)
class Member:
    """One member. ``kind`` is its type: "0" for a regular file, "1" a hard link, "2" a symbolic link, "5" a folder;
    others are as tar(5) has them. ``place`` is where its data begins in the archive.
    """

    name: bytes
    kind: bytes
    target: bytes
    mode: int
    mtime: int
    size: int
    place: int = 0


class _BadHeaderError(Exception):
    """What is wrong with a header."""


def is_header(block: bytes, size: int | None, *, old: bool) -> bool:
    """Whether an archive begins like that: its checksum is right, and it has the magic number of POSIX and GNU.

    old: or it is one from before them, without that number. A sum of bytes alone is little evidence, which other files
    give by chance: all that such a header has must make sense. size: bytes of the file; None where they are not known.
    """
    if len(block) < BLOCK or not block[0]:
        return False
    try:
        _check(block)
        return block[TAR_MAGIC] == b"ustar" or (old and _is_old(block, size))
    except _BadHeaderError:
        return False


def _is_old(block: bytes, size: int | None) -> bool:
    """Whether a header without a magic number has a name, numbers with digits, a known type and a size that fits."""
    name, mode, uid, gid, length, mtime, _, kind, target, *_ = HEADER.unpack(block)
    for field in (name, target):
        if any(field[len(field.partition(b"\0")[0]) :]):
            return False  # these are padded with zeros
    numbers = [_number(field) for field in (mode, uid, gid, length, mtime) if _has_digit(field)]
    fits = len(numbers) == 5 and min(numbers[:4]) >= 0 and kind in OLD_KINDS
    return fits and (size is None or kind in NO_DATA or BLOCK + numbers[3] <= size)


def _has_digit(field: bytes) -> bool:
    return bool(field[0] & 0x80 or field.partition(b"\0")[0].strip(b" "))


def members(stream: Stream, warn: Callable[[str], None]) -> Iterator[Member]:
    """The members of an archive. The caller may read a member's data, or some of it, before it asks for the next. warn:
    gets a line for what is left out.

    Raises:
        MetadataError: the archive is damaged or cut.
        UnsupportedError: it has a member of a kind that is not packed.
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
            raise MetadataError(f"{stream.path}: the archive ends inside of {name!a:.200}; it was cut, copy it again")


def _next(stream: Stream, shared: dict[bytes, bytes]) -> Member | None:
    """The next member with what extended headers say of it; None at the end. Those of POSIX count more than GNU's,
    whichever comes first, and an empty value takes back what one for all members says.
    """
    extended: dict[bytes, bytes] = {}
    long: dict[bytes, bytes] = {}
    for _ in range(HEADERS_MAX):
        block = stream.read(BLOCK)
        if len(block) < BLOCK:
            raise MetadataError(f"{stream.path}: the archive ends without its end mark; it was cut, copy it again")
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
                    "archive with tar, and pack the folder"
                )
            return replace(_apply(member, extended), place=stream.position)
    raise _BadHeaderError(f"more than {HEADERS_MAX} extended headers")


def _warn_of_more(stream: Stream, warn: Callable[[str], None]) -> None:
    """Pass over all behind the first of an end mark's two blocks, so that checksums at the end are compared."""
    second = stream.read(BLOCK)
    more = any(second)
    while not more and (piece := stream.read(PIECE)):
        more = any(piece)
    stream.drain()
    mark = "its end mark" if len(second) == BLOCK and not any(second) else "a lone block of zeros"
    if more:
        warn(f"{stream.path}: more follows {mark} and is left out, as tar does without --ignore-zeros")
    elif len(second) < BLOCK:
        warn(f"{stream.path}: ends with {mark}; it may have been cut there")


def _content(stream: Stream, size: int) -> bytes:
    """The data of an extended header."""
    if size > HEADER_MAX:
        raise _BadHeaderError(f"an extended header of {size} bytes")
    data = stream.read(size)
    if len(data) < size or not stream.skip(-size % BLOCK):
        raise MetadataError(f"{stream.path}: the archive ends inside of an extended header; it was cut")
    return data


def _check(block: bytes) -> None:
    """Compare a header's checksum: a sum of bytes, which some took for signed. It is never blank, as others are."""
    if not _has_digit(block[148:156]):
        raise _BadHeaderError("its header has no checksum")
    stored = _number(block[148:156])
    unsigned = sum(block) - sum(block[148:156]) + 8 * 32
    if stored != unsigned and stored != unsigned - 256 * sum(byte > 127 for byte in block[:148] + block[156:]):
        raise _BadHeaderError("the checksum of its header is wrong")


def _parse(block: bytes) -> Member:
    """A header as it is."""
    _check(block)
    name, mode, _, _, size, mtime, _, kind, target, magic, _, _, _, _, prefix = HEADER.unpack(block)
    name, target, prefix = (field.partition(b"\0")[0] for field in (name, target, prefix))
    if magic == b"ustar\x0000" and prefix:
        name = prefix + b"/" + name
    if kind in (b"\0", b"7"):
        kind = b"0"
    length = 0 if kind in NO_DATA else _number(size)
    if length < 0:
        raise _BadHeaderError(f"it claims {length} bytes")
    return Member(name, kind, target, _number(mode) & 0o7777, _number(mtime) * 10**9, length)


def _number(field: bytes) -> int:
    """A number: octal, or binary where the first bit is set."""
    if field[0] & 0x80:
        number = int.from_bytes(field, "big") & ((1 << (8 * len(field) - 1)) - 1)
        sign = 1 << (8 * len(field) - 2)
        return number - 2 * sign if number & sign else number
    text = field.partition(b"\0")[0].strip(b" ")
    if not all(0x30 <= byte <= 0x37 for byte in text):
        raise _BadHeaderError("a number in its header is none")
    return int(text or b"0", 8)


def _parse_extended(data: bytes) -> dict[bytes, bytes]:
    """The records ``LENGTH KEY=VALUE\\n`` of an extended header of POSIX."""
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(data):
        blank = data.find(b" ", at, at + 20)
        digits = data[at:blank] if blank > at else b""
        end = at + int(digits) if digits.isdigit() else 0
        if not blank < end - 1 < len(data) or data[end - 1 : end] != b"\n":
            raise _BadHeaderError("its extended header is no list of keys and values")
        key, equals, value = data[blank + 1 : end - 1].partition(b"=")
        if not equals:
            raise _BadHeaderError("a key of its extended header has no value")
        if key in USED or key.startswith(SPARSE):
            found[key] = value
        at = end
    return found


def _apply(member: Member, extended: dict[bytes, bytes]) -> Member:
    """A member with what its extended headers say in place of what its own can hold."""
    name = extended.get(b"path") or member.name
    # As tars before 1988 wrote folders. Only the whole name says so: a header may have the first 100 bytes of one.
    kind = b"5" if member.kind == b"0" and name.endswith(b"/") else member.kind
    changed = replace(member, name=name, kind=kind, target=extended.get(b"linkpath") or member.target)
    if b"size" in extended and member.kind not in NO_DATA:
        if not extended[b"size"].isdigit() or len(extended[b"size"]) > 18:
            raise _BadHeaderError("its extended header has a size that is none")
        changed = replace(changed, size=int(extended[b"size"]))
    if b"mtime" in extended:
        changed = replace(changed, mtime=_time(extended[b"mtime"]))
    return changed


def _time(text: bytes) -> int:
    """Nanoseconds since 1970 of a decimal number of seconds."""
    sign = -1 if text.startswith(b"-") else 1
    whole, _, part = text.removeprefix(b"-").partition(b".")
    if not (whole + part).isdigit() or len(whole) > 20:
        raise _BadHeaderError("its extended header has a time that is none")
    nanoseconds = sign * (int(whole or b"0") * 10**9 + int(part[:9].ljust(9, b"0")))
    return nanoseconds - (sign < 0 and any(part[9:].strip(b"0")))  # down, as tar does
