"""Small records are read without a batch: the same bytes, verified in the same way, with the same errors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from builders import record_file
from inside import RecordStore, SmallRecords, open_files

import fffs
from fffs.errors import ChecksumError, ClosedError, SourceChangedError, TruncatedError
from fffs.granular import BagReader, DatasetReader, DatasetWriter

RECORDS = [b"one", b"", b"x" * 65536, b"y" * 65537, b"five", *[b"%d" % k * k for k in range(20)]]


@pytest.fixture(params=["ffr", "bag", "both"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RecordStore]:
    """A store of records with checksums, of records without, and of both."""
    (tmp_path / "x.ffr").write_bytes(record_file(RECORDS))
    fffs.convert(tmp_path / "x.ffr", tmp_path / "x.bag")
    names = {"both": ["x.ffr", "x.bag"]}.get(request.param, [f"x.{request.param}"])
    with closing(RecordStore(open_files([str(tmp_path / name) for name in names]))) as opened:
        yield opened


def test_bytes_are_those_of_a_batch(store: RecordStore) -> None:
    small, expected = SmallRecords(store), RECORDS * (store.n // len(RECORDS))
    assert [small.read(k) for k in range(store.n)] == expected
    assert small.read_run(3, 12) == RECORDS[3:12]
    assert small.read_run(store.n - 1, store.n) == RECORDS[-1:]
    chosen = [store.n - 1, 0, 1, 4]
    assert small.read_several(chosen) in ([expected[k] for k in chosen], None)  # None: not in memory
    assert small.read_several([0, 3]) is None, "too large"
    if len(store.files) == 2:
        assert small.read_run(20, 30) is None, "not in one file"


def test_damage_is_an_error_of_its_record_alone(tmp_path: Path) -> None:
    data = bytearray(record_file([b"one", b"two", b"three"]))
    data[data.index(b"two")] ^= 1
    (tmp_path / "x.ffr").write_bytes(data)
    with closing(RecordStore(open_files([str(tmp_path / "x.ffr")]))) as store:
        small = SmallRecords(store)
        assert small.read(0) == b"one" and small.read(2) == b"three"
        with pytest.raises(ChecksumError, match="record 1: checksum mismatch"):
            small.read(1)
        assert small.read_run(0, 3) is None and small.read_several([0, 1]) is None
    with closing(RecordStore(open_files([str(tmp_path / "x.ffr")], check_data=False))) as store:
        small = SmallRecords(store)
        assert small.read(1) == b"uwo" and small.read_run(0, 3) == [b"one", b"uwo", b"three"]


@pytest.mark.parametrize("change", ["touch", "cut"])
def test_a_file_without_checksums_that_changes_is_an_error(tmp_path: Path, change: str) -> None:
    (tmp_path / "x.ffr").write_bytes(record_file(RECORDS))
    fffs.convert(tmp_path / "x.ffr", tmp_path / "x.bag")
    with BagReader(tmp_path / "x.bag") as reader:
        assert reader[4] == b"five"
        os.utime(tmp_path / "x.bag", (1, 1)) if change == "touch" else os.truncate(tmp_path / "x.bag", 2)
        for index in (4, slice(4, 9), [4, 5]):
            with pytest.raises((SourceChangedError, TruncatedError)):
                reader[index]  # type: ignore[index]


def test_records_beyond_the_end_of_a_truncated_file_are_errors(tmp_path: Path) -> None:
    data = record_file([b"one", b"two", b"three"])
    (tmp_path / "x.ffr").write_bytes(data[:-6])
    with closing(RecordStore(open_files([str(tmp_path / "x.ffr")]))) as store:
        small = SmallRecords(store)
        assert small.read(0) == b"one"
        with pytest.raises(TruncatedError):
            small.read(2)
        assert small.read_run(0, 2) is None


def test_a_closed_store_is_an_error(store: RecordStore) -> None:
    small = SmallRecords(store)
    store.close()
    for read in (lambda: small.read(0), lambda: small.read_several([0, 1]), lambda: small.read_run(0, 2)):
        with pytest.raises(ClosedError):
            read()


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    with DatasetWriter(tmp_path / "set", {"a": "bytes", "b": "utf8"}, layout="v3") as writer:
        for k in range(10):
            writer.append({"a": b"%d" % k, "b": str(k)})
    return tmp_path / "set"


@pytest.mark.parametrize("error", [None, BlockingIOError(11, "not in memory"), OSError(95, "not supported")])
def test_a_row_that_is_not_in_memory_is_one_batch(
    rows: Path, monkeypatch: pytest.MonkeyPatch, error: OSError | None
) -> None:
    batches: list[Any] = []
    joined = RecordStore.read_joined

    def preadv(*arguments: Any) -> int:
        raise error  # type: ignore[misc]

    def record(store: RecordStore, numbers: Any) -> Any:
        batches.append(numbers)
        return joined(store, numbers)

    with DatasetReader(rows) as reader:
        if error:
            monkeypatch.setattr(os, "preadv", preadv)
        monkeypatch.setattr(RecordStore, "read_joined", record)
        assert reader[7] == reader[-3] == {"a": b"7", "b": "7"}
        assert reader[2:5] == {"a": [b"2", b"3", b"4"], "b": ["2", "3", "4"]}
        if error:
            assert [7, 17] in batches


def test_rows_are_the_same_with_masks_and_as_lists(rows: Path) -> None:
    with DatasetReader(rows) as reader:
        assert reader[3, ["b"]] == {"b": "3"}
        assert reader[1:3, {"a": True}] == {"a": [b"1", b"2"]}
        assert reader[[3, 1]] == {"a": [b"3", b"1"], "b": ["3", "1"]}
        assert reader[range(1, 9, 4)] == {"a": [b"1", b"5"], "b": ["1", "5"]}
        assert reader[4:4] == {"a": [], "b": []}
        assert reader[9:99] == {"a": [b"9"], "b": ["9"]}
        assert [row["b"] for row in reader] == [str(k) for k in range(10)]
