"""FileWriter writes the same bytes as ffrecord, compared by the SHA-256 in the manifest.

Contents are generated as ``made`` in the manifest says; only the lengths come from the golden file. Packed folders are
not tested here, because those of fffs have a trailer.
"""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from golden_files import GOLDEN, Golden, record_content, sha256

import fffs

LEGACY = "legacy-zero-crc.ffr"
PARTS = {name: i for i, name in enumerate(GOLDEN.files["parts/"]["files"])}


def contents(name: str) -> list[bytes]:
    """Return the records of a golden file, generated from the manifest."""
    made = GOLDEN.files[name]["made"]
    if name == "pickled-50.ffr":
        return [pickle.dumps((2 * i, 3 * i), protocol=4) for i in range(50)]
    tag = re.search(r"TAG=(\w+);", made)
    assert tag, made
    lengths = [len(record) for record in GOLDEN.raw(name).records]
    first = sum(GOLDEN.files["parts/"]["counts"][: PARTS[name]]) if name in PARTS else 0
    return [record_content(tag[1], first + i, length) for i, length in enumerate(lengths)]


def write(path: Path, records: list[bytes]) -> bytes:
    with fffs.FileWriter(path, len(records)) as writer:
        for record in records:
            writer.write_one(record)
    return path.read_bytes()


@pytest.mark.parametrize("name", [name for name in GOLDEN.of_kind("records") if name != LEGACY])
def test_the_same_records_give_the_same_bytes(golden: Golden, tmp_path: Path, name: str) -> None:
    written = write(tmp_path / "again.ffr", contents(name))
    assert len(written) == golden.files[name]["size"]
    assert sha256(written) == golden.files[name]["sha256"]


def test_the_lengths_of_the_parts_are_those_described(golden: Golden) -> None:
    lengths = [len(record) for name in PARTS for record in golden.raw(name).records]
    assert lengths == [(37 * i) % 200 for i in range(10)]


def test_a_legacy_file_rewritten_gains_only_its_checksum(golden: Golden, tmp_path: Path) -> None:
    written = write(tmp_path / "again.ffr", contents(LEGACY))
    assert written[4:] == golden.bytes(LEGACY)[4:]
    assert written[:4] != bytes(4)


@pytest.mark.parametrize("name", ["mixed-100.ffr", "tiny-5000.ffr"])
def test_what_a_reader_gives_can_be_written_as_it_is(golden: Golden, tmp_path: Path, name: str) -> None:
    path = tmp_path / "copy.ffr"
    with fffs.FileReader(golden.path(name)) as reader, fffs.FileWriter(path, reader.n) as writer:
        for record in reader.read(range(reader.n)):
            writer.write_one(record)
    assert sha256(path.read_bytes()) == golden.files[name]["sha256"]


@pytest.mark.parametrize("n", [0, 1, 1023, 1024, 1025, 70_000])
def test_any_number_of_records_comes_back(tmp_path: Path, n: int) -> None:
    records = [b"%d" % i for i in range(n)]
    write(tmp_path / "many.ffr", records)
    with fffs.FileReader(tmp_path / "many.ffr") as reader:
        assert [record.tobytes() for record in reader.read(range(n))] == records


@pytest.mark.parametrize("size", [2**20 - 1, 2**20, 2**20 + 1, 5 * 2**20 + 7])
def test_a_record_around_the_block_size_comes_back(tmp_path: Path, size: int) -> None:
    record = np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()
    write(tmp_path / "large.ffr", [b"before", record, b"after"])
    with fffs.FileReader(tmp_path / "large.ffr") as reader:
        assert [data.tobytes() for data in reader.read(range(3))] == [b"before", record, b"after"]
