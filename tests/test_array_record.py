"""Files of array_record become record files, and these become array_record; its library is the other side."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from array_record.python.array_record_data_source import ArrayRecordDataSource
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter
from builders import MIB, small_disk, stretched
from test_convert import flip, left_in, records_of, when_reread, write_ffr

import fffs
from fffs.errors import FormatError, RecordError, UsageError, WriteError

RECORDS = [b"", b"one", stretched(MIB * 3, 3), *(stretched(k * 50, k) for k in range(40)), b""]


def write_array_record(path: Path, records: list[bytes], options: str = "group_size:7") -> Path:
    writer = ArrayRecordWriter(str(path), options)
    for record in records:
        writer.write(record)
    writer.close()
    return path


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    """TFDS puts descriptions beside the shards, which were packed as files then."""
    folder = tmp_path / "1.0.0"
    folder.mkdir()
    write_array_record(folder / "mnist-train.array_record-00000-of-00001", RECORDS)
    (folder / "features.json").touch()
    with pytest.raises(
        UsageError, match=r"1\.0\.0: has files of array_record .* and others \(features\.json\); --from"
    ):
        fffs.convert(folder, tmp_path / "x.ffr")
    assert fffs.convert(folder, tmp_path / "x.ffr", from_="array_record").items == len(RECORDS)
    assert fffs.convert(folder, tmp_path / "f.ffr", from_="folder").items == 2
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a.array_record").symlink_to(folder / "mnist-train.array_record-00000-of-00001")
    assert fffs.convert(tmp_path / "train", tmp_path / "y.ffr").items == len(RECORDS)


def test_records_come_from_and_go_to_the_library(tmp_path: Path) -> None:
    source = write_array_record(tmp_path / "x.array_record", RECORDS)
    done = fffs.convert(source, tmp_path / "x.ffr", verify=True, warn=pytest.fail)
    assert done == ("array_record", "ffrecord", len(RECORDS), sum(map(len, RECORDS)), 1)
    assert records_of(tmp_path / "x.ffr") == RECORDS
    fffs.convert(tmp_path / "x.ffr", tmp_path / "y.array_record", verify=True)
    reader = ArrayRecordReader(str(tmp_path / "y.array_record"))
    assert reader.read_all() == RECORDS
    assert "group_size:1," in reader.writer_options_string() + ","
    reader.close()
    assert left_in(tmp_path) == ["x.array_record", "x.ffr", "y.array_record"]


def test_shards_of_tfds_and_of_fffs(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    for k in range(3):
        write_array_record(tmp_path / f"t/mnist-train.array_record-0000{k}-of-00003", RECORDS[k * 10 : k * 10 + 10])
    fffs.convert(tmp_path / "t", tmp_path / "x.tfrecord", verify=True)
    assert records_of(tmp_path / "x.tfrecord") == RECORDS[:30]
    done = fffs.convert(tmp_path / "x.tfrecord", tmp_path / "s", to="array_record", part_size=5000, verify=True)
    names = left_in(tmp_path / "s")
    assert names == [f"s-{k:05}-of-{done.parts:05}.array_record" for k in range(done.parts)]
    with ArrayRecordDataSource([str(tmp_path / "s" / name) for name in names]) as data:
        assert data.__getitems__(list(range(len(data)))) == RECORDS[:30]


def test_packs_and_urls_are_refused(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    fffs.pack_folder(tmp_path / "f", tmp_path / "f.ffr")
    with pytest.raises(UsageError, match=r"f\.ffr: a packed folder: the names would be lost; --from ffrecord"):
        fffs.convert(tmp_path / "f.ffr", tmp_path / "x.array_record")
    with pytest.raises(UsageError, match="knows local files only"):
        fffs.convert(tmp_path / "f.ffr", "s3://bucket/x.array_record")
    source = write_array_record(tmp_path / "y.array_record", [b"x"])
    with pytest.raises(UsageError, match=r"y\.array_record: has no columns; omit --column"):
        fffs.convert(source, tmp_path / "z.ffr", column="x")
    assert left_in(tmp_path) == ["f", "f.ffr", "y.array_record"]


def test_damage_is_an_error_in_one_line(tmp_path: Path) -> None:
    whole = write_array_record(tmp_path / "good", RECORDS).read_bytes()
    source, chosen = tmp_path / "x.array_record", random.Random(3)
    damaged = [whole[: chosen.randrange(len(whole))] for _ in range(20)]
    for _ in range(40):
        data = bytearray(whole)
        data[chosen.randrange(len(data) - 65536 * 3)] ^= 1 << chosen.randrange(8)
        damaged.append(bytes(data))
    refused = 0
    for data in damaged:
        source.write_bytes(data)
        try:
            fffs.convert(source, tmp_path / "y.ffr", from_="array_record", force=True)
        except FormatError as error:
            refused += 1
            assert str(error).startswith(f"{source}: ")
            assert "\n" not in str(error)
    assert refused > 40
    assert set(left_in(tmp_path)) <= {"good", "x.array_record", "y.ffr"}


def test_verify_finds_a_flipped_byte_before_the_file_is_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_ffr(tmp_path / "x.ffr", [stretched(1000, k) for k in range(100)])
    when_reread(monkeypatch, lambda file: flip(file.fd, 30_000))
    with pytest.raises((RecordError, FormatError), match=r"y\.array_record: "):
        fffs.convert(source, tmp_path / "y.array_record", verify=True)
    assert left_in(tmp_path) == ["x.ffr"]


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    source = write_ffr(tmp_path / "x.ffr", [random.Random(k).randbytes(MIB) for k in range(4)])
    with small_disk(tmp_path / "small", 2 * MIB) as disk:
        with pytest.raises(WriteError, match=f"^{disk}/x.array_record: cannot write: No space left on device"):
            fffs.convert(source, disk / "x.array_record")
        assert left_in(disk) == []
