"""Fuzzes Bags: those that the format's definition accepts are accepted, with the same records, and zstd's of a bagz.

Input: one byte (bits 0 and 1: the requested layout, or none; 4: the table is a separate file; 8: a .bagz), two bytes
(the size of that file), then the files.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import shutil
import struct
import tempfile
from pathlib import Path

from inside import WINDOW_LOG, ZSTD, LocalFile
from inside import load_bag_index as load_index
from inside import optional_library as library

from fffs import FileReader
from fffs.errors import FormatError, RecordError
from fffs.granular import BagReader
from fuzz.cursor import Cursor

LAYOUTS = (None, "v1", "v2", "v3")
SAMPLE = 24
LIMIT = 1 << 20


@functools.cache
def folder() -> Path:
    """Return a folder for this process, in memory if possible."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    made = tempfile.mkdtemp(prefix=f"fffs-fuzz-{os.getpid()}-", dir=memory)
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


class NoBagError(Exception):
    """The format's definition does not accept this Bag."""


def bounds_of(data: bytes, table: bytes | None, layout: str | None, compressed: bool) -> list[int]:
    """Return the begins and ends of the records, as the format defines them."""
    if table is not None and layout in (None, "v3"):
        bounds = [0, *struct.unpack(f"<{len(table) // 8}Q", table[: len(table) // 8 * 8])]
    elif layout == "v3":
        raise NoBagError("no table")
    elif not data and layout != "v1":
        return [0]
    else:
        if len(data) < 8:
            raise NoBagError("too short")
        begin = int.from_bytes(data[-8:], "little")
        if begin > len(data) - 8 or (len(data) - begin) % 8:
            raise NoBagError("no table")
        bounds = list(struct.unpack(f"<{(len(data) - begin) // 8}Q", data[begin:]))
        if layout == "v2" or (layout is None and (compressed or bounds[0] != 0)):
            bounds = [0, *bounds]
    if bounds[0] != 0 or bounds != sorted(bounds) or bounds[-1] >= 2**63:
        raise NoBagError("offsets that cannot be")
    return bounds


def check_bag(data: bytes, table: bytes | None, layout: str | None, compressed: bool) -> None:
    """Check that a Bag of these bytes is refused, or has the records of the definition."""
    path = folder() / f"x.bag{'z' * compressed}"
    beside = folder() / ("limits.x.bagz" if compressed else "x.idx")
    path.write_bytes(data)
    beside.unlink(missing_ok=True)
    if table is not None:
        beside.write_bytes(table)
    try:
        expected: list[int] | None = bounds_of(data, table, layout, compressed)
    except NoBagError:
        expected = None
    with LocalFile.open(path) as file:
        try:
            index = load_index(file, layout=layout)
        except FormatError:
            assert expected is None, "refused what is a Bag"
            return
        assert expected is not None, "took for a Bag what is none"
        assert [*index.starts.tolist(), *index.ends.tolist()[-1:]] == (expected if len(expected) > 1 else [])
    check_records(path, data, expected, layout, compressed)


def check_records(path: Path, data: bytes, bounds: list[int], layout: str | None, compressed: bool) -> None:
    """Check that records are the bytes between their bounds, or an error if the file ends before."""
    try:
        reader = BagReader(path, layout, LIMIT)
    except Exception as error:
        if compressed and "needs" in str(error):
            return
        raise
    with reader:
        count = len(bounds) - 1
        assert len(reader) == count
        right = [content(data, *pair, compressed) for pair in itertools.pairwise(bounds[: SAMPLE + 1])]
        last = range(max(count - SAMPLE, 0), count)
        some = dict(enumerate(right)) | {k: content(data, bounds[k], bounds[k + 1], compressed) for k in last}
        for k, expected in some.items():
            try:
                record: bytes | None = reader[k]
            except RecordError as error:
                assert error.record == k and str(path) in str(error)
                record = None
            assert record == expected
        try:
            assert reader[:SAMPLE] == right
        except RecordError:
            assert None in right
    if layout is None and not compressed:
        with FileReader(path) as plain:
            assert plain.index().format == "Bag"
            assert plain.n == count
            good = [k for k, record in some.items() if record is not None]
            assert [record.tobytes() for record in plain.read(good)] == [some[k] for k in good]


def content(data: bytes, start: int, end: int, compressed: bool) -> bytes | None:
    """Return a record as the format defines it: bytes, or one frame of zstd of at most LIMIT; None if it is damaged."""
    if end > len(data):
        return None
    if not compressed or start == end:
        return data[start:end]
    zstd = library(ZSTD, "a .bagz")
    frame = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: WINDOW_LOG})
    try:
        found: bytes = frame.decompress(data[start:end], LIMIT + 1)
    except zstd.ZstdError:
        return None
    return found if frame.eof and not frame.unused_data and len(found) <= LIMIT else None


def one_input(data: bytes) -> None:
    """Run the target on one input."""
    cursor = Cursor(data)
    mode, size, rest = cursor.take(1), cursor.take(2), cursor.rest()
    table = rest[:size] if mode & 4 else None
    check_bag(rest[size:] if mode & 4 else rest, table, LAYOUTS[mode & 3], bool(mode & 8))


def seeds() -> dict[str, bytes]:
    """Return the seeds."""
    data, empty = b"hello" + b"world" + b"test", struct.pack("<Q", 0)
    starts, ends = struct.pack("<4Q", 0, 5, 10, 14), struct.pack("<3Q", 5, 10, 14)
    frame = bytes.fromhex("28b52ffd200529000068656c6c6f")
    found = {}
    for mode in range(4):
        name, head = LAYOUTS[mode] or "any", bytes([mode, 0, 0])
        found |= {f"{name}-v1": head + data + starts, f"{name}-v2": head + data + ends, f"{name}-empty": head + empty}
        found[f"{name}-nothing"] = head
        found[f"{name}-zeros"] = head + 6 * empty
        found[f"{name}-v3"] = bytes([mode | 4, len(ends), 0]) + ends + data
        found[f"{name}-torn"] = bytes([mode | 4, len(ends) - 3, 0]) + ends[:-3] + data
        found[f"{name}-cut"] = bytes([mode | 4, len(ends), 0]) + ends + data[:-1]
    for number in (2**40, 2**62, 2**63, 2**64 - 1):
        found[f"last-{number}"] = bytes([4, 16, 0]) + struct.pack("<2Q", 5, number) + data
        found[f"middle-{number}"] = bytes([0, 0, 0]) + data + struct.pack("<4Q", 0, 5, number, 14)
        found[f"first-{number}"] = bytes([0, 0, 0]) + data + struct.pack("<4Q", number, 5, 10, 14)
    for end in range(12, 16):
        found[f"begin-{end}"] = bytes([0, 0, 0]) + data + struct.pack("<4Q", 0, 5, 10, end)
    found["bagz"] = bytes([8, 0, 0]) + frame * 2 + struct.pack("<3Q", 14, 28, 28)
    found["bagz-limits"] = bytes([12, 16, 0]) + struct.pack("<2Q", 14, 28) + frame * 2
    # Nine blocks, each one byte that is repeated.
    blocks = b"".join((size << 3 | 2 | (size == 1)).to_bytes(3, "little") + b"x" for size in 8 * [LIMIT >> 3] + [1])
    larger = bytes.fromhex("28b52ffda0") + struct.pack("<I", LIMIT + 1) + blocks
    records = {"cut": frame[:-1], "followed": frame + b"x", "two": frame * 2, "none": b"x" * 14, "larger": larger}
    for name, record in records.items():
        found[f"bagz-{name}"] = bytes([8, 0, 0]) + frame + record + struct.pack("<2Q", 14, 14 + len(record))
    return found
