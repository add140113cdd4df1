"""Checks any file of frames: its records are those of the format's definition, and an error follows the last one.

The fuzz targets and the tests of damaged files use it. Expected values come from the bytes, parsed by struct.
"""

from __future__ import annotations

import contextlib
import struct
import warnings
from typing import Any

from frame_files import crc32c, masked
from inside import FrameError, LocalFile, RecordIndex
from inside import ofrecord_files as ofrecord
from inside import tfrecord_files as tfrecord

from fffs import FileReader, LegacyFileWarning
from fffs.errors import FormatError, RecordError
from fuzz import surface

Row = tuple[int, int, int]
"""Begin, end and checksum of a record (0 if the format has none)."""


def tf_frames(data: bytes) -> tuple[list[Row], int]:
    """Return the records of a TFRecord file, and the offset of the first bad frame, or of the end."""
    rows, at = [], 0
    while at + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        (crc,) = struct.unpack_from("<I", data, at + 8)
        if crc != masked(crc32c(data[at : at + 8])) or at + 16 + length > len(data):
            break
        end = at + 12 + length
        (stored,) = struct.unpack_from("<I", data, end)
        rotated = (stored - 0xA282EAD8) % 2**32
        rows.append((at + 12, end, (rotated >> 17 | rotated << 15) % 2**32))
        at = end + 4
    return rows, at


def of_frames(data: bytes) -> tuple[list[Row], int]:
    """Return the records of an OFRecord file, and the offset of the first bad frame, or of the end."""
    rows, at = [], 0
    while at + 8 <= len(data):
        (length,) = struct.unpack_from("<q", data, at)
        if length < 0 or at + 8 + length > len(data):
            break
        rows.append((at + 8, at + 8 + length, 0))
        at += 8 + length
    return rows, at


def table(index: RecordIndex) -> list[Row]:
    """Return an index as rows."""
    sums = [0] * len(index) if index.checksums is None else index.checksums.tolist()
    return list(zip(index.starts.tolist(), index.ends.tolist(), sums, strict=True))


def check_file(form: Any, data: bytes, rows: list[Row], at: int) -> None:
    """Check that load_index accepts good files, which are then read, and refuses others with the record and the offset,
    and that partial_index finds the records before.
    """
    with surface.file_of(data) as path:
        with LocalFile.open(path) as file:
            index, error = form.partial_index(file)
            assert table(index) == rows
            assert index.file_size == len(data)
            try:
                assert table(form.load_index(file)) == rows
                assert error is None
                assert at == len(data)
            except FrameError as problem:
                assert error is not None
                assert str(error) == str(problem)
                assert (problem.path, problem.record, problem.offset) == (path, len(rows), at)
                assert at < len(data)
                assert path in str(problem)
                assert f"record {len(rows)}" in str(problem)
                assert f"offset {at}" in str(problem)
        if error is None:
            check_records(form, path, data, rows)


def check_records(form: Any, path: str, data: bytes, rows: list[Row]) -> None:
    """Check that each way of reading a record of a good file returns its bytes, or the error for a wrong checksum."""
    with FileReader(path, format="tfrecord" if form is tfrecord else "ofrecord") as reader:
        columns: Any = tuple(map(list, zip(*rows, strict=True))) or ([], [], [])
        surface.check_records(reader.store, data, columns, crc32c if form is tfrecord else lambda _: 0)
    if rows and form is tfrecord:
        with FileReader(path) as reader:
            assert reader.index().format == "TFRecord", "not recognised"
            assert reader.n == len(rows)


def check_recognised(data: bytes) -> None:
    """Check that a file that is recognised as any format has its records inside the file or is refused."""
    with surface.file_of(data) as path, warnings.catch_warnings():
        warnings.simplefilter("ignore", LegacyFileWarning)
        try:
            reader = FileReader(path)
        except FormatError as error:
            assert path in str(error)
            return
        with reader:
            last = 0
            for start, end, _ in table(reader.index()):
                assert last <= start <= end
                last = end
            for k in surface.sample(range(reader.n)):
                with contextlib.suppress(RecordError):
                    start, end, _ = table(reader.index())[k]
                    assert reader.read_one(k).tobytes() == data[start:end]


def check_tfrecord(data: bytes) -> None:
    """As ``check_file``; compressed files are refused before."""
    check_recognised(data)
    if tfrecord.compression(data[:12]) is None:
        check_file(tfrecord, data, *tf_frames(data))
        return
    with surface.file_of(data) as path, LocalFile.open(path) as file:
        try:
            tfrecord.load_index(file)
        except FormatError as error:
            assert "compressed" in str(error)
        else:
            raise AssertionError("read a compressed file by number")


def check_ofrecord(data: bytes) -> None:
    """As ``check_file``."""
    check_recognised(data)
    check_file(ofrecord, data, *of_frames(data))
