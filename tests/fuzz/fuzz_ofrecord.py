"""Fuzzes OFRecord files: frames and messages against slow models; cached indexes and sidecars are right or not used.

Input: one byte (the kind of the rest), then the rest: a file; a recipe for frames; an OFRecord message; changes to a
cache entry, or (8) to a checksum sidecar, whose own checksum is corrected afterwards if the byte has 4.
"""

from __future__ import annotations

import os
import struct
import zlib

from frame_files import of_frame
from inside import LocalFile, index_cache
from inside import frames as scanned

from fffs import FileReader, ofrecord
from fffs.errors import MetadataError
from fuzz import frames, fuzz_bag, messages, surface
from fuzz.cursor import Cursor
from fuzz.fuzz_tfrecord import FRAMES, check_message

FILE, RECIPE, MESSAGE, ENTRY = range(4)
CACHED = b"".join(of_frame(bytes([k])) for k in range(4))


def recipe(cursor: Cursor) -> bytes:
    """Return a file whose frames are right, except for the changes in the input."""
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


def key_for(path: str) -> index_cache.Key:
    """Return the key of a file on any file system."""
    status = os.stat(path)
    times = status.st_mtime_ns, status.st_ctime_ns
    return index_cache.Key(bytes(range(16)), status.st_dev, status.st_ino, status.st_size, *times)


def entry_for(path: str) -> bytes:
    """Return a right entry for a file, without its checksum."""
    ends = [end for _, end, _ in frames.of_frames(CACHED)[0]]
    head = index_cache.HEADER.pack(b"fffsSCAN", 2, 2, *key_for(path), len(ends), 0, 0)
    return head + struct.pack(f"<{len(ends)}q", *ends)


def changed(right: bytes, cursor: Cursor, mended: bool) -> bytes:
    """Change something that ends with its checksum at some places. mended: correct the checksum."""
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
    return bytes(data)


def check_sidecar(cursor: Cursor, mended: bool) -> None:
    """Check that a changed sidecar is refused, unless only checksums of records differ: then these are used."""
    rows = frames.of_frames(CACHED)[0]
    starts, ends = [row[0] for row in rows], [row[1] for row in rows]
    tied = zlib.crc32(struct.pack(f"<{2 * len(rows)}q", *starts, *ends))
    head = struct.pack("<8sQQI", b"fffsCRC1", len(rows), len(CACHED), tied)
    sums = struct.pack(f"<{len(rows)}I", *(zlib.crc32(CACHED[a:b]) for a, b, _ in rows))
    data = changed(head + sums, cursor, mended)
    path = fuzz_bag.folder() / "part-0"
    path.write_bytes(CACHED)
    (path.parent / "part-0.fffs-crc").write_bytes(data)
    good = (
        len(data) == len(head) + len(sums) + 4
        and data.startswith(head)
        and data[-4:] == struct.pack("<I", zlib.crc32(data[:-4]))
    )
    try:
        reader = FileReader(path, format="ofrecord")
    except MetadataError as error:
        assert not good
        assert "part-0.fffs-crc" in str(error)
        return
    with reader:
        assert good
        said = list(struct.unpack_from(f"<{len(rows)}I", data, len(head)))
        surface.check_records(reader.store, CACHED, (starts, ends, said))


def check_entry(cursor: Cursor, mended: bool) -> None:
    """Check that a changed entry gives the right index or none. An entry with right checksums and other content must be
    refused if the file shows that it is wrong.
    """
    with surface.file_of(CACHED) as path, surface.file_of(b"") as entry_path:
        right = entry_for(path)
        data = changed(right, cursor, mended)
        fd = os.open(entry_path, os.O_RDWR)
        try:
            os.fchmod(fd, 0o600)
            os.pwrite(fd, data, 0)
            found = index_cache.read_entry(fd, 2, key_for(path))
        finally:
            os.close(fd)
        if found is None:
            assert data[:-4] != right or not data or data[-4:] != struct.pack("<I", zlib.crc32(right))
            return
        with LocalFile.open(path) as file:
            index = scanned.cached_index(file, scanned.OFRECORD, len(CACHED), found)
        if index is not None:  # all of so few frames are compared with the file
            rows = list(zip(index.starts.tolist(), index.ends.tolist(), strict=True))
            assert rows == [(start, end) for start, end, _ in frames.of_frames(CACHED)[0]]


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
    elif what & 8:
        check_sidecar(cursor, mended=bool(what & 4))
    else:
        check_entry(cursor, mended=bool(what & 4))
