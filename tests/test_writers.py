"""Common to all writers of record files: refused names and arguments, and what failures leave behind."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fffs
from fffs.errors import UsageError, WriterError

WRITERS: dict[str, Callable[[Path], Any]] = {
    "x.ffr": lambda path: fffs.FileWriter(path, 1),
    "x.tfrecord": fffs.tfrecord.TFRecordWriter,
    "part-0": fffs.ofrecord.OFRecordWriter,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_finished_writer_takes_no_more_records(tmp_path: Path, name: str) -> None:
    writer = WRITERS[name](tmp_path / name)
    writer.write_one(b"in time")
    writer.finish()
    with pytest.raises(WriterError, match=r"has been finished|have been written"):
        writer.write_one(b"late")
    with pytest.raises(WriterError, match="has been finished"):
        writer.write_batch(np.frombuffer(b"late", np.uint8), np.array([0, 4]))
    writer.close()
    with fffs.open(tmp_path / name) as reader:
        assert [bytes(record) for record in reader.read(range(reader.n))] == [b"in time"]


@pytest.mark.parametrize("kind", [fffs.tfrecord.TFRecordWriter, fffs.ofrecord.OFRecordWriter])
def test_a_writer_takes_no_number_of_records_that_it_would_misunderstand(
    tmp_path: Path, kind: Callable[..., Any]
) -> None:
    with pytest.raises(TypeError):
        kind(tmp_path / "x", 5)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", WRITERS)
def test_a_closed_writer_writes_to_no_other_file(tmp_path: Path, name: str) -> None:
    """A file that is opened later gets the descriptor number of the writer."""
    writer = WRITERS[name](tmp_path / name)
    writer.write_one(b"record")
    writer.close()
    writer._stream.raw  # noqa: B018 - what its end flushes into
    opened = [os.open(tmp_path / f"other{k}", os.O_RDWR | os.O_CREAT) for k in range(8)]
    with pytest.raises(ValueError, match="closed"):
        writer._stream.write(b"late") and writer._stream.flush()
    del writer
    gc.collect()
    assert [os.fstat(fd).st_size for fd in opened] == [0] * 8
    for fd in opened:
        os.close(fd)


@pytest.mark.parametrize("layout", ["v1", "v3"])
def test_a_completed_data_set_takes_no_more_rows(tmp_path: Path, layout: str) -> None:
    writer = fffs.granular.DatasetWriter(tmp_path / "data", {"a": "bytes"}, layout=layout)
    writer.append({"a": b"in time"})
    writer.complete()
    opened = [os.open(tmp_path / f"other{k}", os.O_RDWR | os.O_CREAT) for k in range(8)]
    for late in (lambda: writer.append({"a": bytes(2 << 20)}), lambda: writer.append_blobs([b"x"]), writer.flush):
        with pytest.raises(WriterError, match="has been completed"):
            late()
    writer.close()
    assert [os.fstat(fd).st_size for fd in opened] == [0] * 8
    for fd in opened:
        os.close(fd)
    with fffs.open(tmp_path / "data") as reader:
        assert [bytes(row["a"]) for row in reader.read(range(reader.n))] == [b"in time"]


def test_an_empty_record_in_a_batch_is_named_by_its_number(tmp_path: Path) -> None:
    with fffs.ofrecord.OFRecordWriter(tmp_path / "part-0") as writer:
        writer.write_one(b"0")
        with pytest.raises(UsageError, match="record 2 is empty"):
            writer.write_batch(np.frombuffer(b"ab", np.uint8), np.array([0, 1, 1, 2]))


@pytest.mark.parametrize(
    "encode",
    [
        lambda: fffs.ofrecord.encode({"a": 5}, {"a": "bytes_list"}),
        lambda: fffs.tfrecord.encode_sequence({}, {"a": 5}),
    ],
)
def test_what_is_no_list_is_refused(encode: Callable[[], bytes]) -> None:
    with pytest.raises(UsageError, match=r"'a': a list is needed, not int"):
        encode()


# ---------------------------------------------------------------- the working folder


def write_bag(layout: str, folder: Path) -> None:
    """Write a Bag under a relative name, and change to another folder, which has files of the same names, meanwhile."""
    writer = fffs.granular.BagWriter("x.bag", layout=layout)
    writer.append(b"0")
    if layout == "v3":
        writer.flush()
    os.chdir(folder)
    writer.append(b"1")
    writer.close()


def write_data_set(layout: str, folder: Path) -> None:
    with fffs.granular.DatasetWriter("x", {"a": "bytes", "b": "bytes"}, layout=layout) as writer:
        for k in range(4):
            writer.append({"a": b"%d" % k, "b": b""}, flush=True)
            os.chdir(folder)


def write_shards(layout: str, folder: Path) -> None:
    spec = {"a": "bytes"}
    with fffs.granular.ShardedDatasetWriter("x", spec, shard_length=2, layout=layout) as writer:
        for k in range(5):
            writer.append({"a": b"%d" % k})
            os.chdir(folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("layout", ["v1", "v3"])
@pytest.mark.parametrize("write", [write_bag, write_data_set, write_shards])
def test_a_writer_stays_in_its_folder_when_the_working_folder_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[str, Path], None], layout: str
) -> None:
    for name in ("still", "changing", "other"):
        (tmp_path / name).mkdir()
    for name in ("x.idx", "x.bag.fffs-crc"):
        (tmp_path / "other" / name).write_bytes(b"unrelated")
    before = contents(tmp_path / "other")
    for name, to in (("still", "still"), ("changing", "other")):
        monkeypatch.chdir(tmp_path / name)
        write(layout, tmp_path / to)
    assert contents(tmp_path / "changing") == contents(tmp_path / "still") != {}
    assert contents(tmp_path / "other") == before


@pytest.mark.parametrize("name", WRITERS)
def test_a_record_file_stays_in_its_folder_when_the_working_folder_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for folder in ("first", "other"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "first")
    writer = WRITERS[name](Path(name))
    writer.write_one(b"record")
    monkeypatch.chdir(tmp_path / "other")
    writer.close()
    assert list(contents(tmp_path / "first")) == [name]
    assert contents(tmp_path / "other") == {}
