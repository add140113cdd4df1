"""Fuzzes OFRecord files: frames and messages against slow models, and cached indexes, which are right or ignored.

Input: one byte (what the rest is), then the rest: a file; a recipe for frames; an OFRecord message; changes to an entry
of the cache, whose checksum is made right first when the byte says so.
"""

from __future__ import annotations

import os
import struct
import zlib

from frame_files import of_frame

from fffs import index_cache, ofrecord
from fffs.formats import frames as scanned
from fuzz import frames, messages, surface
from fuzz.cursor import Cursor
from fuzz.fuzz_tfrecord import FRAMES, check_message

FILE, RECIPE, MESSAGE, ENTRY = range(4)
CACHED = b"".join(of_frame(bytes([k])) for k in range(4))


def recipe(cursor: Cursor) -> bytes:
    """A file whose frames are right, but for what the input says."""
    out = b""
    for _ in range(FRAMES):
        if not cursor:
            break
        what, length = cursor.take(1), cursor.take(1)
        frame = of_frame(bytes(length))
        if what & 7 == 1:
            frame = struct.pack("<Q", cursor.take(8)) + bytes(length)
        elif what & 7 == 2:
            frame = frame[: cursor.take(1)]
        out += frame
    return out


def entry_for(path: str) -> bytes:
    """A right entry for a file, without its checksum."""
    status = os.stat(path)
    ends = [end for _, end, _ in frames.of_frames(CACHED)[0]]
    key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    head = index_cache.HEADER.pack(b"fffsSCAN", 1, 2, *key, len(ends), 0, 0)
    return head + struct.pack(f"<{len(ends)}q", *ends)


def check_entry(cursor: Cursor, mended: bool) -> None:
    """An entry changed at some places gives the right index or none; or what is not damage but another answer, refused
    where it can be known to be wrong.
    """
    with surface.file_of(CACHED) as path, surface.file_of(b"") as entry_path:
        right = entry_for(path)
        data = bytearray(right + struct.pack("<I", zlib.crc32(right)))
        while cursor:
            at, value, what = cursor.take(2), cursor.take(1), cursor.take(1)
            if what & 3 == 1:
                data = data[: at % (len(data) + 1)]
            elif what & 3 == 2:
                data += bytes([value])
            elif data:
                data[at % len(data)] = value
        if mended:
            data[-4:] = struct.pack("<I", zlib.crc32(bytes(data[:-4])))
        fd = os.open(entry_path, os.O_RDWR)
        try:
            os.fchmod(fd, 0o600)
            os.pwrite(fd, data, 0)
            found = index_cache.read_entry(fd, 2, os.stat(path))
        finally:
            os.close(fd)
        if found is None:
            assert bytes(data[:-4]) != right or not data or data[-4:] != struct.pack("<I", zlib.crc32(right))
            return
        index = scanned.cached_index(path, scanned.OFRECORD, len(CACHED), found)
        if index is not None:
            last = 0
            for start, end in zip(index.starts.tolist(), index.ends.tolist(), strict=True):
                assert last + 8 == start <= end <= len(CACHED)
                last = end
            assert last == len(CACHED)


def one_input(data: bytes) -> None:
    """Run the target on one input."""
    cursor = Cursor(data)
    what = cursor.take(1)
    if what % 4 == FILE:
        frames.check_ofrecord(cursor.rest())
    elif what % 4 == RECIPE:
        frames.check_ofrecord(recipe(cursor))
    elif what % 4 == MESSAGE:
        check_message(cursor.rest(), ofrecord.decode, messages.ofrecord, messages.plain, ofrecord.encode)
    else:
        check_entry(cursor, mended=bool(what & 4))
