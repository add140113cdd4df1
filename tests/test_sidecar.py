"""Checksum sidecars: the damage that they detect, the ones that are refused, and no new ones for known damage."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inside import CHECK_CRC32, CHECK_NONE, SIDECAR, LocalFile, OFRecordWriter, SourceFile, sidecars
from test_bag import FRAMES, LIMITS
from test_cli import run

import fffs
from fffs import granular
from fffs.errors import ChecksumError, MetadataError, RecordError, TruncatedError, UsageError

RECORDS = [b"\n\0" + np.random.default_rng(k).bytes(500 * k) for k in range(30)] + [b"\n\0" + bytes(3_000_000)]


@pytest.fixture(params=["ofrecord", "bag"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "bag":
        with granular.BagWriter(tmp_path / "x.bag") as bag:
            for record in RECORDS:
                bag.append(record)
        return tmp_path / "x.bag"
    with OFRecordWriter(tmp_path / "part-0") as part:
        for record in RECORDS:
            part.write_one(record)
    return tmp_path / "part-0"


def flip(path: Path, record: int) -> None:
    data = bytearray(path.read_bytes())
    data[data.find(RECORDS[record]) + len(RECORDS[record]) - 1] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["https://example.com/x.tfrecord", "s3://bucket/x.tfrecord", "sftp://host/x.tfrecord"])
def test_objects_get_none(name: str) -> None:
    with pytest.raises(UsageError, match="beside local files only"):
        sidecars.keep_checksums(name)


def test_a_sidecar_makes_a_format_verifiable(path: Path) -> None:
    with fffs.open(path) as reader:
        assert reader.index().check == CHECK_NONE
    assert sidecars.keep_checksums(path) == [f"{path}.fffs-crc"]
    with fffs.open(path) as reader:
        assert reader.index().check == CHECK_CRC32
        assert [record.tobytes() for record in reader.read(range(31))] == RECORDS
        assert reader.read_range(30, 5, 9).tobytes() == bytes(4)
    assert run("verify", path).out.startswith(b"ok: 31 records")
    flip(path, 29)
    with fffs.open(path) as reader:
        with pytest.raises(ChecksumError, match="record 29"):
            reader.read([28, 29])
        assert reader.read_one(28).tobytes() == RECORDS[28]
    assert run("verify", path).code == RecordError.exit_code


def test_checksums_belong_to_the_file_that_a_link_leads_to(tmp_path: Path) -> None:
    for version in (1, 2):
        with granular.BagWriter(tmp_path / f"v{version}.bag") as bag:
            for _ in range(5):
                bag.append(bytes([version]) * 100)
    link = tmp_path / "current.bag"
    link.symlink_to("v1.bag")
    assert sidecars.keep_checksums(link) == [f"{tmp_path}/v1.bag.fffs-crc"]
    for path in (link, tmp_path / "v1.bag"):
        assert run("verify", path).out.startswith(b"ok: 5 records")
    link.unlink()
    link.symlink_to("v2.bag")
    done = run("verify", link)
    assert (done.code, done.out.startswith(b"not verifiable: 5 records")) == (0, True)
    assert sidecars.keep_checksums(link) == [f"{tmp_path}/v2.bag.fffs-crc"]


def test_a_sidecar_from_which_all_records_differ_is_named(tmp_path: Path) -> None:
    for name, byte in (("x", b"a"), ("other", b"b")):
        with granular.BagWriter(tmp_path / f"{name}.bag") as bag:
            for _ in range(5):
                bag.append(byte * 100)
    sidecars.keep_checksums(tmp_path / "x.bag")
    os.replace(tmp_path / "other.bag", tmp_path / "x.bag")
    done = run("verify", tmp_path / "x.bag")
    assert done.code == RecordError.exit_code
    assert "x.bag.fffs-crc: all records differ from it" in done.err


def test_what_is_known_to_be_wrong_is_not_blessed(path: Path) -> None:
    assert run("verify", "--keep", path).code == 0
    flip(path, 3)
    assert sidecars.keep_checksums(path) == []
    result = run("verify", "--keep", path)
    assert result.code == RecordError.exit_code and b"record 3 " in result.out


def test_files_that_have_checksums_get_no_sidecar(tmp_path: Path) -> None:
    with fffs.FileWriter(tmp_path / "x.ffr", 1) as writer:
        writer.write_one(b"content")
    with fffs.tfrecord.TFRecordWriter(tmp_path / "x.tfrecord") as frames:
        frames.write_one(b"content")
    for name in ("x.ffr", "x.tfrecord"):
        assert sidecars.keep_checksums(tmp_path / name) == []
        (tmp_path / f"{name}.fffs-crc").write_bytes(b"not looked at")
        with fffs.open(tmp_path / name) as reader:
            assert reader.read_one(0).tobytes() == b"content"
    assert len(os.listdir(tmp_path)) == 4


@pytest.mark.parametrize("at", [0, 8, 16, 24, 28, 60, -1])
def test_a_damaged_sidecar_is_refused(path: Path, at: int) -> None:
    sidecars.keep_checksums(path)
    file = path.with_name(path.name + ".fffs-crc")
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)
    with pytest.raises(MetadataError, match=r"\.fffs-crc: damaged; make it again \(fffs verify --keep\)"):
        fffs.open(path)
    file.write_bytes(data[:-1])
    with pytest.raises(MetadataError, match=r"\.fffs-crc: does not match the current "):
        fffs.open(path)
    file.unlink()
    file.mkdir()
    with pytest.raises(fffs.errors.FffsError, match=r"\.fffs-crc"):
        fffs.open(path)


def test_a_sidecar_of_another_version_is_refused_and_replaced(path: Path) -> None:
    sidecars.keep_checksums(path)
    other = path.with_name("other" + path.suffix if path.suffix else "part-1")
    path.rename(other)
    kept = path.with_name(path.name + SIDECAR).read_bytes()
    write_reversed(path)
    path.with_name(path.name + SIDECAR).write_bytes(kept)  # as other programs leave it
    with pytest.raises(MetadataError, match=r"does not match the current "):
        fffs.open(path)
    result = run("cat", path, "00")
    assert result.code == MetadataError.exit_code and result.err.count("\n") == 1
    assert sidecars.keep_checksums(path) == [f"{path}.fffs-crc"]
    assert run("verify", path).code == 0


def write_reversed(path: Path) -> None:
    writer = granular.BagWriter(path) if path.suffix else OFRecordWriter(path)
    with writer:
        for record in RECORDS[::-1]:
            (writer.append if isinstance(writer, granular.BagWriter) else writer.write_one)(record)


def test_a_file_that_is_written_anew_loses_the_checksums_of_the_old_one(path: Path, tmp_path: Path) -> None:
    def is_kept() -> bool:
        return path.with_name(path.name + SIDECAR).exists()

    assert sidecars.keep_checksums(path)
    write_reversed(path)
    assert not is_kept()
    with fffs.open(path) as reader:
        assert reader.read_one(0).tobytes() == RECORDS[-1]
        with fffs.FileWriter(tmp_path / "x.ffr", len(RECORDS)) as writer:
            for record in RECORDS:
                writer.write_one(record)
    assert sidecars.keep_checksums(path)
    fffs.convert(tmp_path / "x.ffr", path, to="bag" if path.suffix else "ofrecord", force=True, verify=True)
    assert not is_kept()


def test_a_bag_that_grows_loses_the_checksums_that_it_had(tmp_path: Path) -> None:
    path = tmp_path / "x.bag"
    for records in (RECORDS[:5], RECORDS[5:9]):
        with granular.BagWriter(path, layout="v3") as bag:
            for record in records:
                bag.append(record)
        with fffs.open(path) as reader:
            assert reader.read_one(reader.n - 1).tobytes() == records[-1]
        assert sidecars.keep_checksums(path)


def test_a_reader_with_checksums_goes_on_while_its_bag_grows(tmp_path: Path) -> None:
    path = tmp_path / "x.bag"
    with granular.BagWriter(path, layout="v3") as bag:
        for record in RECORDS:
            bag.append(record)
    assert sidecars.keep_checksums(path)
    with fffs.open(path) as reader:
        with granular.BagWriter(path, layout="v3") as bag:
            bag.append(b"more", flush=True)
            assert [bytes(record) for record in reader.read(range(reader.n))] == RECORDS
        assert [bytes(reader.read_range(k, 0, 10**7)) for k in range(reader.n)] == RECORDS
        damaged = bytearray(path.read_bytes())
        damaged[0] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(ChecksumError):
            reader.read_one(0)
        assert bytes(reader.read_one(1)) == RECORDS[1]


def test_checksums_that_are_made_while_a_bag_grows_are_gone_when_it_has_grown(tmp_path: Path) -> None:
    path = tmp_path / "x.bag"
    with granular.BagWriter(path, layout="v3") as bag:
        for size in (1, 3_000_000):  # one that stays in memory, and one that does not
            bag.append(b"kept", flush=True)
            assert sidecars.keep_checksums(path)
            bag.append(b"x" * size)
            with fffs.open(path) as reader:
                assert reader.read_one(reader.n - 1).tobytes() == b"kept"
            sidecars.keep_checksums(path)
            bag.flush()
            with fffs.open(path) as reader:
                assert reader.read_one(reader.n - 1).tobytes() == b"x" * size
        bag.append(b"x" * 3_000_000)
        sidecars.keep_checksums(path)
        bag.discard()
    with fffs.open(path) as reader:
        assert reader.n == 4


def test_a_record_that_cannot_be_read_gets_no_checksum(tmp_path: Path) -> None:
    with granular.BagWriter(tmp_path / "x.bag") as bag:
        bag.append(b"first")
        bag.append(b"second")
    file = LocalFile.open(tmp_path / "x.bag")
    index = fffs.open(tmp_path / "x.bag").index()
    os.truncate(tmp_path / "x.bag", 7)
    with file, pytest.raises(TruncatedError, match=r"x\.bag: record 1 reaches past the end"):
        sidecars._write(SourceFile(file, index))
    assert os.listdir(tmp_path) == ["x.bag"]


def read_unchecked(reader: Any) -> None:
    """Damaged bytes may be invalid for their type: any error is allowed, except one about checksums."""
    with reader:
        try:
            reader.read(range(reader.n))
        except fffs.errors.RecordError as error:
            assert not isinstance(error, ChecksumError)


def test_checksums_of_a_compressed_bag_are_compared_unless_told_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "x.bagz"
    path.write_bytes(FRAMES + LIMITS)
    sidecars.keep_checksums(path)
    data = bytearray(FRAMES + LIMITS)
    data[data.find(b"hello")] ^= 2  # these frames have no zstd checksums
    path.write_bytes(data)
    with fffs.open(path) as reader, pytest.raises(ChecksumError, match=r"x\.bagz: record 0"):
        reader.read_one(0)
    with fffs.open(path, check_data=False) as reader:
        assert reader[0] == pickle.loads(pickle.dumps(reader))[0] == b"jello"
        assert reader.read_one(0).tobytes() == b"jello"


def test_data_sets_are_verified_too(tmp_path: Path) -> None:
    golden = Path(__file__).parent / "golden" / "granular"
    checked = 0
    for k, path in enumerate(sorted(golden.glob("*/datasets/*"))):
        copy = tmp_path / str(k)
        shutil.copytree(path, copy)
        try:
            with fffs.open(copy) as reader:
                rows = repr(reader.read(range(reader.n)))
                assert reader.n > 0
        except (fffs.errors.FffsError, AssertionError):
            continue
        if not sidecars.keep_checksums(copy):
            continue
        with fffs.open(copy) as reader:
            assert repr(reader.read(range(reader.n))) == rows
            bag = Path(next(file.index.path for file in reader._store.files if file.index.ends.any()))
        data = bytearray(bag.read_bytes())
        data[0] ^= 1
        bag.write_bytes(data)
        with fffs.open(copy) as reader, pytest.raises(ChecksumError, match=bag.name):
            reader.read(range(reader.n))
        with fffs.open(copy, check_data=False) as reader:
            read_unchecked(reader)
            read_unchecked(pickle.loads(pickle.dumps(reader)))
        checked += 1
    assert checked > 5


def test_tables_of_a_data_set_that_look_like_bags_get_no_checksums(tmp_path: Path) -> None:
    with granular.DatasetWriter(tmp_path / "set", {"a": "bytes", "b": "bytes"}, layout="v3") as writer:
        for k in range(10):
            writer.append({"a": bytes(k), "b": b"y"})
    for key in "ab":
        (tmp_path / f"set/{key}.idx").rename(tmp_path / f"set/limits.{key}.bag")
    before = set(os.listdir(tmp_path / "set"))
    assert run("verify", "--keep", tmp_path / "set").code == 0
    assert set(os.listdir(tmp_path / "set")) - before == {"a.bag.fffs-crc", "b.bag.fffs-crc"}
    with granular.DatasetReader(tmp_path / "set") as reader:
        assert reader[3] == {"a": bytes(3), "b": b"y"}


def test_verify_keeps_checksums_of_a_folder_of_parts(path: Path) -> None:
    if path.suffix:
        return
    shutil.copy(path, path.with_name("part-1"))
    result = run("verify", "--json", "--keep", path.parent)
    assert (result.code, json.loads(result.out)["unverifiable"]) == (0, 0)
    assert sorted(os.listdir(path.parent)) == ["part-0", "part-0.fffs-crc", "part-1", "part-1.fffs-crc"]
    with fffs.open(path.parent) as reader:
        assert reader.n == 62
