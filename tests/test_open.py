"""fffs.open, and FileReader for every format: recognised by content first; verified batches, copies, refusals."""

from __future__ import annotations

import copy
import json
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frame_files import of_frame
from inside import (
    CHECK_CRC32,
    CHECK_CRC32C,
    CHECK_NONE,
    OFRecordWriter,
    data_set_folders,
    keep_checksums,
    kind_of_source,
)
from test_bag import BAGZ, FRAMES, LIMITS
from test_cli import run

import fffs
from fffs import granular, tfrecord
from fffs.errors import ChecksumError, FormatError, RecordIndexError, SourceNotFoundError, UsageError

GOLDEN_FOLDER = Path(__file__).parent / "golden"
RECORDS = [b"\n\0" + np.random.default_rng(k).bytes(1000 + k) for k in range(40)]


def write_ffrecord(path: Path) -> None:
    with fffs.FileWriter(path.with_name("written.ffr"), len(RECORDS)) as writer:
        for record in RECORDS:
            writer.write_one(record)
    path.with_name("written.ffr").rename(path)


def write_with(kind: Callable[[Path], Any]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with kind(path) as writer:
            for record in RECORDS:
                writer.write_one(record)

    return write


def test_load_source_takes_one_path_or_several(tmp_path: Path) -> None:
    path = tmp_path / "x.ffr"
    write_ffrecord(path)
    for given, n in ((path, 1), (str(path), 1), (os.fsencode(path), 1), ([path, str(path)], 2)):
        with fffs.load_source(given) as source:
            assert source.store.n == n * len(RECORDS)


WRITERS: dict[str, tuple[Callable[[Path], None], int]] = {
    "ffrecord": (write_ffrecord, CHECK_CRC32),
    "tfrecord": (write_with(tfrecord.TFRecordWriter), CHECK_CRC32C),
    "ofrecord": (write_with(OFRecordWriter), CHECK_NONE),
}


@pytest.fixture(params=WRITERS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def path(form: str, tmp_path: Path) -> Path:
    """A file whose name does not tell the format."""
    WRITERS[form][0](tmp_path / "records")
    return tmp_path / "records"


def as_bytes(records: list[np.ndarray]) -> list[bytes]:
    return [record.tobytes() for record in records]


def test_a_file_is_recognised_by_its_content(form: str, path: Path) -> None:
    with fffs.open(path) as reader:
        assert isinstance(reader, fffs.FileReader)
        assert reader.n == len(reader) == 40
        assert as_bytes(reader.read([3, -1, 3])) == [RECORDS[3], RECORDS[39], RECORDS[3]]
        assert reader.read_one(7).tobytes() == RECORDS[7]
        assert reader.read_range(7, 10, 20).tobytes() == RECORDS[7][10:20]
        assert reader.index().check == WRITERS[form][1]
        with pytest.raises(RecordIndexError):
            reader.read([40])


@pytest.mark.parametrize("name", ["x.ffr", "part-00003", "x.tfrecord"])
def test_the_content_says_more_than_the_name(form: str, path: Path, name: str) -> None:
    renamed = path.rename(path.with_name(name))
    with fffs.open(renamed) as reader:
        assert as_bytes(reader.read(range(40))) == RECORDS


def test_a_format_can_be_forced(tmp_path: Path) -> None:
    with granular.BagWriter(tmp_path / "x.bag") as writer:
        for record in RECORDS:
            writer.append(record)
    renamed = (tmp_path / "x.bag").rename(tmp_path / "x.data")
    with fffs.open(renamed, format="bag") as reader:
        assert as_bytes(reader.read(range(40))) == RECORDS
        again = pickle.loads(pickle.dumps(reader))
        assert as_bytes(again.read([5])) == [RECORDS[5]]
        again.close()
    with pytest.raises(UsageError, match="no format 'zip'; choose one of ffrecord, "):
        fffs.open(renamed, format="zip")
    with pytest.raises(FormatError, match=r"x\.data: "):
        fffs.open(renamed)


def test_a_bag_may_hold_files_of_other_formats(path: Path, tmp_path: Path) -> None:
    """In this case its first bytes are those of another format."""
    with granular.BagWriter(tmp_path / "x.bag") as writer:
        writer.append(path.read_bytes())
        writer.append(b"second")
    with fffs.open(tmp_path / "x.bag") as reader:
        assert as_bytes(reader.read([1, 0])) == [b"second", path.read_bytes()]


def test_damage_is_found_where_there_are_checksums(form: str, path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[data.find(RECORDS[11]) + 500] ^= 1
    path.write_bytes(data)
    wrong = RECORDS[11][:500] + bytes([RECORDS[11][500] ^ 1]) + RECORDS[11][501:]
    with fffs.open(path) as reader:
        assert as_bytes(reader.read([10, 12])) == [RECORDS[10], RECORDS[12]]
        for read in (lambda: reader.read([10, 11]), lambda: [reader.read_range(11, 0, 10)]):
            if form == "ofrecord":
                assert as_bytes(read())[-1] in (wrong, wrong[:10])
                continue
            with pytest.raises(ChecksumError, match=r"records: record 11"):
                read()
    with fffs.open(path, check_data=False) as reader:
        assert reader.read_one(11).tobytes() == wrong


def test_a_large_record_of_each_format_is_checked_block_by_block(form: str, tmp_path: Path) -> None:
    large = b"\n\0" + np.random.default_rng(1).bytes(5_000_000)
    RECORDS.append(large)
    try:
        WRITERS[form][0](tmp_path / "records")
    finally:
        RECORDS.pop()
    with fffs.open(tmp_path / "records") as reader:
        assert reader.read_one(40).tobytes() == large
        assert reader.read_range(40, 1_000_000, 1_000_100).tobytes() == large[1_000_000:1_000_100]


def test_readers_can_be_copied_and_pickled(path: Path) -> None:
    with fffs.open(path) as reader:
        for again in (copy.copy(reader), pickle.loads(pickle.dumps(reader))):
            with again:
                assert as_bytes(again.read([39])) == [RECORDS[39]]
        reader.validate()


def test_folders_of_parts_and_shards_are_one_reader(tmp_path: Path) -> None:
    for form, names in {
        "ofrecord": [f"part-{k}" for k in range(11)],
        "tfrecord": [f"train-{k:05}-of-00011" for k in range(11)],
        "ffrecord": [f"PART_{k:05}.ffr" for k in range(11)],
    }.items():
        (tmp_path / form).mkdir()
        for name in names:
            WRITERS[form][0](tmp_path / form / name)
        if form == "tfrecord":
            with pytest.raises(SourceNotFoundError, match=r"no \.ffr files in this folder"):
                fffs.open(tmp_path / form)
            names = [name + ".tfrecord" for name in names]
            for name in names:
                (tmp_path / form / name.removesuffix(".tfrecord")).rename(tmp_path / form / name)
        with fffs.open(tmp_path / form) as reader:
            assert reader.n == 440
            assert [os.path.basename(name) for name in reader.fnames] == names
            assert as_bytes(reader.read([401])) == [RECORDS[1]]


def test_a_folder_stands_for_all_its_sets_of_shards_in_the_order_of_their_names(tmp_path: Path) -> None:
    names = [f"{name}.tfrecord-{k:05}-of-00002" for name in ("test", "train") for k in range(2)]
    for name in reversed(names):
        WRITERS["tfrecord"][0](tmp_path / name)
    with fffs.open(tmp_path) as reader:
        assert [os.path.basename(name) for name in reader.fnames] == names
    with fffs.open(fffs.tfrecord.expand_shards(tmp_path / "train.tfrecord")) as reader:
        assert [os.path.basename(name) for name in reader.fnames] == names[2:]


def test_a_data_set_is_a_spec_with_bags_beside_it_for_everybody(tmp_path: Path) -> None:
    parts, shards = tmp_path / "parts", tmp_path / "shards"
    with granular.ShardedDatasetWriter(shards, {"k": "bytes"}, shard_length=1) as writer:
        for k in range(2):
            writer.append({"k": b"%d" % k})
    (shards / "spec.json").write_text("{}")  # belongs to another program, as the one beside the parts
    parts.mkdir()
    (parts / "spec.json").write_text('{"k": "bytes"}')
    write_ffrecord(parts / "PART_00000.ffr")
    assert data_set_folders(os.fspath(parts)) == []
    with pytest.raises(UsageError, match=r"parts of a FFRecord set .* and others \(spec.json\); --from ffrecord "):
        kind_of_source(os.fspath(parts))
    assert keep_checksums(parts) == []
    with fffs.open(parts) as reader, fffs.load_source(parts) as source:
        assert isinstance(reader, fffs.FileReader) and reader.n == source.store.n == len(RECORDS)
    assert data_set_folders(os.fspath(shards)) == [os.fspath(shards / name) for name in ("000000", "000001")]
    assert kind_of_source(os.fspath(shards)) == "granular"
    assert len(keep_checksums(shards)) == 4
    with fffs.open(shards) as rows, fffs.load_source(shards) as source:
        assert (type(rows), rows.n, source.layout) == (granular.ShardedDatasetReader, 2, "granular")
    fffs.convert(shards, tmp_path / "x.ffr", verify=True)


def test_formats_can_be_mixed_in_one_reader(tmp_path: Path) -> None:
    for form, (write, _) in WRITERS.items():
        write(tmp_path / form)
    with fffs.open([tmp_path / form for form in WRITERS]) as reader:
        assert as_bytes(reader.read(range(120))) == RECORDS * 3
        assert [reader.index(k).check for k in range(3)] == [CHECK_CRC32, CHECK_CRC32C, CHECK_NONE]
    data = bytearray((tmp_path / "tfrecord").read_bytes())
    data[data.find(RECORDS[2])] ^= 1
    (tmp_path / "tfrecord").write_bytes(data)
    with fffs.open([tmp_path / form for form in WRITERS]) as reader:
        with pytest.raises(ChecksumError, match=r"tfrecord: record 2: (Sample 42: )?checksum mism"):
            reader.read([0, 42, 119])
        assert as_bytes(reader.read([0, 41, 119])) == [RECORDS[0], RECORDS[1], RECORDS[39]]


@pytest.mark.parametrize("path", sorted((GOLDEN_FOLDER / "granular").glob("*/datasets/*")), ids=lambda path: path.name)
def test_data_sets_have_the_same_interface(path: Path) -> None:
    try:
        reader = fffs.open(path)
    except (FormatError, SourceNotFoundError):
        with pytest.raises((FormatError, SourceNotFoundError)):
            granular.DatasetReader(path)
        return
    with reader:
        assert isinstance(reader, (granular.DatasetReader, granular.ShardedDatasetReader))
        assert reader.n == len(reader)
        for k in range(reader.n):
            assert repr(reader.read([k, 0])[0]) == repr(reader.read_one(k))


def test_a_compressed_bag_is_never_given_out_compressed(tmp_path: Path) -> None:
    path = tmp_path / "x.bagz"
    path.write_bytes(FRAMES + LIMITS)
    with pytest.raises(UsageError, match=r"x\.bagz: its records are compressed; open it with fffs\.open"):
        fffs.FileReader(path)
    with fffs.open(path) as reader:
        assert isinstance(reader, granular.BagReader)
        assert as_bytes(reader.read(range(reader.n))) == BAGZ
        assert reader.read_one(2).tobytes() == b"world" * 100
        assert reader.read_range(2, 1, 5).tobytes() == b"orld"
        assert len(reader.index()) == reader.n == 4


@pytest.mark.parametrize("content", [b"", b"\0" * 13, b"\xff" * 100, b"PK\x03\x04" + b"\0" * 50, struct.pack("<q", 7)])
def test_what_nothing_recognises_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(FormatError, match=r"/x: "):
        fffs.open(tmp_path / "x")


@pytest.mark.parametrize("record", [b"any bytes", b"", struct.pack("<q", 3) * 4])
def test_a_part_of_ofrecord_may_hold_any_bytes(record: bytes, tmp_path: Path) -> None:
    (tmp_path / "part-0").write_bytes(of_frame(record) * 3)
    with fffs.open(tmp_path / "part-0") as reader:
        assert as_bytes(reader.read(range(reader.n))) == [record] * 3
    (tmp_path / "part-0").write_bytes(of_frame(record) * 3 + b"cut")
    with pytest.raises(FormatError, match=rf"/part-0: record 3, .* offset {3 * (8 + len(record))}: "):
        fffs.open(tmp_path / "part-0")


def test_parts_of_the_package_need_no_import_of_their_own() -> None:
    program = (
        "import fffs; print(fffs.tfrecord.decode.__name__, fffs.ofrecord.encode.__name__, fffs.granular.BagReader)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "decode encode <class 'fffs.granular.bag_reader.BagReader'>\n"


# ---------------------------------------------------------------- commands


def test_info_names_the_format_and_its_checksums(form: str, path: Path) -> None:
    result = run("info", "--json", path)
    assert result.code == 0
    facts = json.loads(result.out)
    title = {"ffrecord": "FFRecord", "tfrecord": "TFRecord", "ofrecord": "OFRecord"}[form]
    sums = {"ffrecord": "CRC-32 per record", "tfrecord": "CRC-32C per record", "ofrecord": "none (not verifiable)"}[
        form
    ]
    assert (facts["format"], facts["checksums"], facts["records"]) == (title, sums, 40)


def test_commands_can_be_told_the_format(tmp_path: Path) -> None:
    with granular.BagWriter(tmp_path / "x.bag") as writer:
        writer.append(b"first")
        writer.append(b"second")
    path = (tmp_path / "x.bag").rename(tmp_path / "x.data")
    form = ["--format", "bag"]
    refused = run("ls", path)
    assert refused.code == 4 and "not a record file, or damaged: as an FFRecord file" in refused.err
    assert run("ls", path, *form) == (0, b"000000\n000001\n", "")
    assert run("cat", *form, path, "000001") == (0, b"second", "")
    assert json.loads(run("info", *form, "--json", path).out)["format"] == "Bag"
    assert run("unpack", "-q", *form, path, tmp_path / "copy") == (0, b"", "")
    assert (tmp_path / "copy" / "000000").read_bytes() == b"first"
    assert run("verify", *form, path).out.startswith(b"not verifiable: 2 records")
    assert run("verify", "--keep", *form, path).out.startswith(b"ok: 2 records")
    assert run("verify", path).code == 4
    assert (tmp_path / "x.data.fffs-crc").exists()


def test_a_folder_of_a_format_that_was_named_is_no_data_set(tmp_path: Path) -> None:
    spec = {"x": "bytes"}
    with granular.DatasetWriter(tmp_path / "set", spec) as writer:
        writer.append({"x": b"abc"})
    assert run("ls", tmp_path / "set").code == 0
    result = run("ls", "--format", "tfrecord", tmp_path / "set")
    assert result.code == 3 and "no .ffr files in this folder" in result.err
    assert run("verify", "--keep", "--format", "tfrecord", tmp_path / "set").code == 3


def test_cat_and_ls_work_on_each_format(form: str, path: Path) -> None:
    result = run("cat", path, "000007")
    assert result.code == 0
    assert result.out == RECORDS[7]
    result = run("ls", "--json", path)
    assert result.code == 0
    listed = json.loads(result.out)
    assert [entry["size"] for entry in listed] == [len(record) for record in RECORDS]
    with fffs.open(path) as reader:
        sums = [f"{crc:08x}" for crc in reader.get_checksums()]
    name = "crc32c" if form == "tfrecord" else "crc32"
    assert [entry[name] for entry in listed] == ([None] * 40 if form == "ofrecord" else sums)


def test_what_has_no_checksums_is_not_called_ok(form: str, path: Path) -> None:
    result = run("verify", path)
    assert result.code == 0
    text = result.out.decode()
    expected = (
        "not verifiable: 40 records without checksums could be read, " if form == "ofrecord" else "ok: 40 records, "
    )
    assert text.startswith(expected) and text.count("\n") == 1
    result = run("verify", "--json", path)
    assert result.code == 0
    assert json.loads(result.out)["unverifiable"] == (40 if form == "ofrecord" else 0)


def test_verify_names_each_damaged_record_of_a_tfrecord_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    WRITERS["tfrecord"][0](path)
    data = bytearray(path.read_bytes())
    for k in (3, 39):
        data[data.find(RECORDS[k])] ^= 1
    path.write_bytes(data)
    result = run("verify", path)
    assert result.code == ChecksumError.exit_code
    lines = result.out.decode().splitlines()
    assert [line.split(":")[1].split("'")[0] for line in lines] == [" record 3 ", " record 39 "]
    assert all("checksum mismatch" in line for line in lines)


def test_opening_a_packed_folder_imports_nothing_of_other_formats(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    fffs.pack_folder(tmp_path / "folder", tmp_path / "p.ffr")
    program = "import fffs, sys; fffs.PackedFolder('p.ffr'); sys.exit('fffs.granular' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=False).returncode == 0


def test_parts_among_other_files_are_not_taken_for_files_to_pack(tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    parts.mkdir()
    write_ffrecord(parts / "PART_00000.ffr")
    (parts / "_SUCCESS").touch()
    with pytest.raises(UsageError, match="--from folder packs all files"):
        fffs.convert(parts, tmp_path / "x.ffr")
    fffs.convert(parts, tmp_path / "records.ffr", from_="ffrecord")
    with fffs.FileReader(tmp_path / "records.ffr") as reader:
        assert as_bytes(reader.read(range(reader.n))) == RECORDS
    fffs.convert(parts, tmp_path / "files.ffr", from_="folder")
    with fffs.PackedFolder(tmp_path / "files.ffr") as packed:
        assert sorted(packed.list("")) == ["PART_00000.ffr", "_SUCCESS"]


def test_the_only_part_of_a_folder_is_the_source_also_as_the_result(tmp_path: Path) -> None:
    write_ffrecord(tmp_path / "d.ffr")
    (tmp_path / "d").mkdir()
    os.rename(tmp_path / "d.ffr", tmp_path / "d" / "p0.ffr")
    before = (tmp_path / "d" / "p0.ffr").read_bytes()
    with pytest.raises(UsageError, match="is the source itself"):
        fffs.convert(tmp_path / "d", tmp_path / "d" / "p0.ffr", force=True)
    assert (tmp_path / "d" / "p0.ffr").read_bytes() == before
