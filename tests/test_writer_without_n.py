"""FileWriter without a number of records: the records are moved behind the header when their number is known."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from builders import MIB, record_file, small_disk, split_records, stretched
from inside import inserting

import fffs
from fffs.errors import UsageError, WriteError, WriterError


def write(path: Path, records: list[bytes], *, together: int = 0) -> Path:
    with fffs.FileWriter(path) as writer:
        if together:
            for k in range(0, len(records), together):
                part = records[k : k + together]
                bounds = np.concatenate([[0], np.cumsum([len(record) for record in part])])
                writer.write_batch(np.frombuffer(b"".join(part), np.uint8), bounds)
        else:
            for record in records:
                writer.write_one(record)
        assert writer.n is None
    assert writer.n == len(records)
    return path


@pytest.mark.parametrize("count", [0, 1, 340, 341, 5000])
@pytest.mark.parametrize("together", [0, 700])
def test_small_files_have_the_bytes_of_those_with_a_number(tmp_path: Path, count: int, together: int) -> None:
    records = [stretched(k % 50, k) for k in range(count)]
    assert write(tmp_path / "x.ffr", records, together=together).read_bytes() == record_file(records)


@pytest.mark.parametrize("count", [20, 2000])
def test_large_files_have_the_same_records_wherever_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    records = [stretched(12 * MIB // count, k) for k in range(count)]
    path = write(tmp_path / "x.ffr", records)
    assert path.stat().st_size - len(record_file(records)) <= 2 * 4096
    with fffs.FileReader(path) as reader:
        assert [bytes(record) for record in reader] == records
        assert reader.get_offsets()[0] >= 12 + 12 * count
    monkeypatch.setattr(inserting, "_fallocate", refused)
    monkeypatch.setattr(inserting, "PIECE", 100_000)
    path = write(tmp_path / "y.ffr", records)
    if count > 340:
        assert path.read_bytes() == record_file(records)
    with fffs.FileReader(path) as reader:
        assert [bytes(record) for record in reader] == records
    assert sorted(os.listdir(tmp_path)) == ["x.ffr", "y.ffr"]


def refused(*_: int) -> None:
    raise OSError(95, "not supported")


def test_blocks_are_inserted_where_the_file_system_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    real = inserting._fallocate

    def noted(fd: int, mode: int, offset: int, size: int) -> None:
        real(fd, mode, offset, size)
        calls.append(size)

    monkeypatch.setattr(inserting, "_fallocate", noted)
    monkeypatch.setattr(inserting, "move", lambda *_: pytest.fail("copied"))
    records = [stretched(6000, k) for k in range(2000)]
    try:
        with open(tmp_path / "probe", "wb") as probe:
            probe.write(bytes(8192))
            probe.flush()
            real(probe.fileno(), inserting.INSERT_RANGE, 0, 4096)
    except OSError:
        monkeypatch.undo()  # this file system cannot insert; the file is complete all the same
        calls.append(20480)
    path = write(tmp_path / "x.ffr", records)
    assert calls == [20480]
    with fffs.FileReader(path) as reader:
        assert [bytes(record) for record in reader] == records
        reader.validate()


def test_such_a_file_is_like_any_other(tmp_path: Path) -> None:
    records = [stretched(6000, k) for k in range(2000)]
    path = write(tmp_path / "x.ffr", records)
    fffs.convert(path, tmp_path / "y.ffr", to="ffrecord", verify=True, from_="ffrecord")
    assert split_records((tmp_path / "y.ffr").read_bytes()) == records
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with fffs.FileReader(path) as reader:
        assert [number for number, _ in reader.store.verify(range(2000))] == [1999]


def test_nothing_is_there_before_the_end_and_nothing_after_a_failure(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), fffs.FileWriter(tmp_path / "x.ffr") as writer:
        writer.write_one(b"x")
        assert not (tmp_path / "x.ffr").exists()
        raise ZeroDivisionError
    with small_disk(tmp_path / "small", 24 * MIB) as disk:
        with pytest.raises(WriteError), fffs.FileWriter(disk / "x.ffr") as writer:
            for k in range(30):
                writer.write_one(stretched(MIB, k))
        assert os.listdir(disk) == []
    child = os.fork()
    if child == 0:
        inserting.write_at = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        write(tmp_path / "x.ffr", [b"x" * 100] * 1000)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert not (tmp_path / "x.ffr").exists()


def test_misuse(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"s3://bucket/x\.ffr: an object needs the number of its records"):
        fffs.FileWriter("s3://bucket/x.ffr", None)
    writer = fffs.FileWriter(tmp_path / "x.ffr")
    writer.write_one(b"x")
    writer.close()
    with pytest.raises(WriterError):
        writer.write_one(b"y")
