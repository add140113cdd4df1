"""Reads the names in tar archives of all formats.

tarfile is not used: it trusts the claimed size of an extended header, drops nanoseconds, and decodes names as text.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from fffs.errors import MetadataError
from fffs.formats.streams import PIECE, Stream
from fffs.native import ffi, lib
from fffs.packing.names import Names

BLOCK: Final = 512


def is_header(block: bytes, size: int | None, *, old: bool) -> bool:
    """Return whether a block is a tar header: its checksum is right, and it has the magic number of POSIX and GNU.

    old: also accept a header from before these, or of a volume's label, without that number. Other files may have a
    right sum of bytes by chance, so all fields of such a header must be valid. size: bytes of the file, or None if
    unknown.
    """
    if len(block) < BLOCK:
        return False
    return bool(lib.fffs_tar_is_header(ffi.from_buffer("uint8_t[]", block), -1 if size is None else size, old))


def read_names(stream: Stream, names: Names, report: Callable[[], None]) -> None:
    """Add all members of an archive to ``names``. The place of a file is its offset in the stream. report: called after
    each piece.

    Raises:
        MetadataError: the archive is damaged or truncated.
        UnsupportedError: a member cannot be packed.
        ReadError: the operating system could not read.

    """
    tar, step = ffi.new("fffs_tar **"), ffi.new("fffs_tar_step *")
    if lib.fffs_tar_new(names.native, tar) != 0:
        raise MemoryError("not enough memory to list an archive")
    parser = ffi.gc(tar[0], lib.fffs_tar_free)
    data, ended, status, step.wanted = b"", False, lib.FFFS_TAR_MORE, BLOCK
    while status != lib.FFFS_TAR_END:
        if status == lib.FFFS_TAR_MORE:
            data = _read_more(stream, data, step.wanted)
            ended = len(data) < step.wanted
        status = names.check(lib.fffs_tar_parse(parser, ffi.from_buffer("uint8_t[]", data), len(data), ended, step))
        report()
        data = data[step.used :]
        if step.skip and not stream.skip(step.skip):
            raise _ends_inside(stream, step)
    _warn_of_more(stream, data, names.warn)


def _read_more(stream: Stream, data: bytes, wanted: int) -> bytes:
    """Return data, and what follows it: so many bytes in all, or more, or less at the end. What can be had without
    decompressing more is parsed first, because that may fail.
    """
    pieces, size = [data], len(data)
    while size < wanted and (piece := stream.some()):
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)


def _ends_inside(stream: Stream, step: Any) -> MetadataError:
    name = os.fsdecode(bytes(ffi.buffer(step.name, step.name_size)))
    return MetadataError(f"{stream.path}: the archive ends inside {name!a:.200}; it is truncated, copy it again")


def _warn_of_more(stream: Stream, data: bytes, warn: Callable[[str], None]) -> None:
    """Read to the end, so that checksums there are compared. Warn of data after the end mark, or half of a mark. data:
    what was read already of that behind the first block of the mark.
    """
    data += stream.read(BLOCK - len(data))
    second, more = data[:BLOCK], any(data)
    while not more and (piece := stream.read(PIECE)):
        more = any(piece)
    stream.drain()
    mark = "its end mark" if len(second) == BLOCK and not any(second) else "a lone block of zeros"
    if more:
        warn(f"{stream.path}: more follows {mark} and is left out, as tar does without --ignore-zeros")
    elif len(second) < BLOCK:
        warn(f"{stream.path}: ends with {mark}; it may be truncated")
