"""Each bit of a file is flipped, and the file is truncated at each byte: all is detected, no wrong byte is returned."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from golden_files import GOLDEN, sha256

import fffs
from fffs.errors import ChecksumError, FormatError, RecordError

NAME = "packed/tree.ffr"  # 14.5 KiB, 30 records
DATA = GOLDEN.bytes(NAME)
RECORDS = GOLDEN.raw(NAME).records
OFFSETS = GOLDEN.raw(NAME).offsets


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A copy of the file that may be damaged: its path, and a descriptor for writing."""
    path = tmp_path / "victim.ffr"
    path.write_bytes(DATA)
    fd = os.open(path, os.O_RDWR)
    yield path, fd
    os.close(fd)


def test_every_flipped_bit_of_the_metadata_is_refused_at_open(victim: tuple[Path, int]) -> None:
    path, fd = victim
    for position in range(OFFSETS[0]):
        for bit in range(8):
            os.pwrite(fd, bytes([DATA[position] ^ 1 << bit]), position)
            with pytest.raises(FormatError):
                fffs.FileReader(path).close()
        os.pwrite(fd, DATA[position : position + 1], position)
    fffs.FileReader(path).close()


def test_every_flipped_bit_of_the_data_hits_its_record(victim: tuple[Path, int]) -> None:
    path, fd = victim
    hits = [0] * len(RECORDS)
    with fffs.FileReader(path) as reader:
        everything = range(reader.n)
        for record in everything:
            for position in range(OFFSETS[record], OFFSETS[record + 1]):
                for bit in range(8):
                    os.pwrite(fd, bytes([DATA[position] ^ 1 << bit]), position)
                    try:
                        reader.read(everything)
                    except ChecksumError as error:
                        assert error.record == record
                        hits[record] += 1
                os.pwrite(fd, DATA[position : position + 1], position)
        assert [data.tobytes() for data in reader.read(everything)] == RECORDS
    assert hits == [8 * len(data) for data in RECORDS]


def test_a_file_cut_at_any_byte_gives_what_is_left_and_nothing_else(victim: tuple[Path, int]) -> None:
    path, fd = victim
    for size in reversed(range(len(DATA))):
        os.ftruncate(fd, size)
        if size < OFFSETS[0]:
            with pytest.raises(FormatError):
                fffs.FileReader(path).close()
            continue
        left = [i for i in range(len(RECORDS)) if OFFSETS[i + 1] <= size and i < len(RECORDS) - 1]
        with fffs.FileReader(path) as reader:
            assert [data.tobytes() for data in reader.read(left)] == [RECORDS[i] for i in left]
            for i in set(range(reader.n)) - set(left):
                with pytest.raises(RecordError):
                    reader.read_one(i)


def test_every_flipped_bit_of_a_tree_is_refused_or_hides_nothing(victim: tuple[Path, int]) -> None:
    path, fd = victim
    contents = {entry["sha256"] for entry in GOLDEN.files[NAME]["tree"] if entry["type"] == "file"}
    for position in range(OFFSETS[-2], OFFSETS[-1]):
        for bit in range(8):
            os.pwrite(fd, bytes([DATA[position] ^ 1 << bit]), position)
            with pytest.raises((FormatError, ChecksumError)):
                fffs.PackedFolder(path).close()
        # Without checksums, the flip may lead to another tree, but only to one of good records.
        try:
            with fffs.PackedFolder(path, check_data=False) as folder:
                for name in folder.list(list_dir=False, recursive=True):
                    assert sha256(folder.read_one(name)) in contents
        except FormatError:
            pass
        os.pwrite(fd, DATA[position : position + 1], position)
