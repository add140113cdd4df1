"""OFRecord: golden files are read exactly, written files decode to the same records, and all damage is an error."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frame_files import OFRECORD, agrees, assert_says_where, assert_whole_before, changes, of_frame, path_of, tf_frame
from fuzz.fuzz_ofrecord import MESSAGE, one_input
from golden_files import sha256
from inside import CHECK_NONE, LocalFile, RecordIndex, tfrecord_files
from inside import ofrecord_files as files

import fffs
from fffs import ofrecord
from fffs.errors import FormatError, SourceNotFoundError, UsageError
from fffs.ofrecord import FrameError, MessageError

FILES = OFRECORD.single()
FOLDERS = [path for path, entry in OFRECORD.files.items() if entry["kind"] == "ofrecord directory"]


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FFFS_CACHE", "off")


def load(path: Path) -> RecordIndex:
    with LocalFile.open(path) as file:
        return files.load_index(file)


# ---------------------------------------------------------------- golden files


def test_the_golden_files_are_all_here() -> None:
    assert (len(FILES), len(FOLDERS)) == (20, 2)
    for path in FILES:
        assert sha256(OFRECORD.bytes(path)) == OFRECORD.files[path]["sha256"]


@pytest.mark.parametrize("path", FILES)
def test_the_index_is_that_of_the_manifest(path: str) -> None:
    index, rows = load(OFRECORD.path(path)), OFRECORD.files[path]["records"]
    assert index.starts.tolist() == [row["data_offset"] for row in rows]
    assert (index.ends - index.starts).tolist() == [row["len"] for row in rows]
    assert (index.checksums, index.check, index.file_size) == (None, CHECK_NONE, OFRECORD.files[path]["size"])


@pytest.mark.parametrize("path", FILES)
def test_messages_decode_to_what_the_manifest_says_and_again_after_encoding(path: str) -> None:
    for message, row in zip(OFRECORD.records(path), OFRECORD.files[path]["records"], strict=True):
        features = ofrecord.decode(message)
        assert list(features) == list(row["features"])
        assert all(agrees(row["features"][name], value) for name, value in features.items())
        again = ofrecord.encode(features)
        assert len(again) == len(message)  # equal except for the order
        found = ofrecord.decode(again)
        assert list(found) == sorted(found, key=str.encode)
        assert found.keys() == row["features"].keys()
        assert all(agrees(row["features"][name], value) for name, value in found.items())


@pytest.mark.parametrize("path", FILES)
def test_the_writer_gives_the_same_bytes(tmp_path: Path, path: str) -> None:
    with ofrecord.OFRecordWriter(tmp_path / "part-0", allow_empty=True) as writer:
        for record in OFRECORD.records(path):
            writer.write_one(record)
    assert (tmp_path / "part-0").read_bytes() == OFRECORD.bytes(path)


@pytest.mark.parametrize("path", FILES)
def test_golden_files_are_recognised(path: str) -> None:
    data = OFRECORD.bytes(path)
    assert files.recognise(data[:64], len(data), path)
    assert files.recognise(data[:64], len(data), "any-name") == (len(data) > 0)
    assert not tfrecord_files.recognise(data[:64], len(data), path)


def test_a_converted_file_is_recognised_whatever_its_records_are(tmp_path: Path) -> None:
    for k, records in enumerate([[], [b""], [b"", b"abc"], [b"\n"]]):
        source, target = tmp_path / f"{k}.ffr", tmp_path / f"{k}.ofrecord"
        with fffs.FileWriter(source) as writer:
            for record in records:
                writer.write_one(record)
        fffs.convert(source, target, warn=lambda line: None)
        with fffs.FileReader(target) as reader:
            assert [bytes(record) for record in reader] == records


def test_other_files_are_not_recognised(golden: Any) -> None:
    for path in golden.of_kind("records", "packed"):
        assert not files.recognise(golden.bytes(path)[:64], len(golden.bytes(path)), "name")
    for data in (
        b"",
        tf_frame(b"\n\x00"),
        b"text that goes on for a while",
        bytes(64),
        struct.pack("<q", 2) + b"\n\x05",
    ):
        assert not files.recognise(data, len(data), "name")


def test_an_empty_message_is_only_written_on_request(tmp_path: Path) -> None:
    with ofrecord.OFRecordWriter(tmp_path / "part-0") as writer:
        with pytest.raises(UsageError, match="record 0 is empty"):
            writer.write_one(b"")
        writer.write_one(ofrecord.encode({"a": 1}))
    assert len(load(tmp_path / "part-0")) == 1


# ---------------------------------------------------------------- damaged files

BAD_FRAME = {
    "cut-in-data": (23, 3411),
    "cut-in-length": (23, 3411),
    "cut-after-length": (23, 3411),
    "tail-byte": (24, 3582),
    "length-negative": (12, 1767),
    "length-huge": (12, 1767),
    "length-min": (12, 1767),
    "length-past-end": (23, 3411),
}
"""The end of the good frames of each damaged file: record and offset."""
BAD_MESSAGE = ["message-tag", "message-inner-length"]


@pytest.mark.parametrize("name", BAD_FRAME)
def test_a_damaged_frame_is_an_error_that_names_part_record_and_offset(tmp_path: Path, name: str) -> None:
    record, offset = BAD_FRAME[name]
    path = path_of(tmp_path, "part-0", OFRECORD.corrupt(name))
    with pytest.raises(FrameError) as caught:
        load(path)
    assert_says_where(caught.value, path, record, offset)
    assert_whole_before(files, path, OFRECORD.records("five-kinds/part-0")[:record], caught.value)


def test_a_length_one_too_large_gives_the_records_before_it_and_then_an_error(tmp_path: Path) -> None:
    path = path_of(tmp_path, "part-0", OFRECORD.corrupt("length-plus-1"))
    with pytest.raises(FrameError) as caught:
        load(path)
    assert caught.value.record == 13  # record 12 is one byte too long, which cannot be detected
    with LocalFile.open(path) as file:
        index, _ = files.partial_index(file)
    data = path.read_bytes()
    assert [data[a:b] for a, b in zip(index.starts[:12], index.ends[:12], strict=True)] == OFRECORD.records(
        "five-kinds/part-0"
    )[:12]


def test_zeros_at_the_end_are_empty_records(tmp_path: Path) -> None:
    index = load(path_of(tmp_path, "part-0", OFRECORD.corrupt("tail-zeros")))
    assert (index.ends - index.starts).tolist()[-3:] == [163, 0, 0]
    assert len(index) == 26


@pytest.mark.parametrize("name", BAD_MESSAGE)
def test_a_damaged_message_hits_one_record(tmp_path: Path, name: str) -> None:
    path = path_of(tmp_path, "part-0", OFRECORD.corrupt(name))
    index, data = load(path), path.read_bytes()
    good = OFRECORD.records("five-kinds/part-0")
    bad = []
    for k, (a, b) in enumerate(zip(index.starts, index.ends, strict=True)):
        try:
            assert ofrecord.decode(data[a:b]).keys() == ofrecord.decode(good[k]).keys()
        except MessageError as error:
            assert "byte" in str(error)
            bad.append(k)
    assert bad == [12]


def test_every_damaged_variant_has_a_test() -> None:
    assert set(OFRECORD.corruptions) == {*BAD_FRAME, *BAD_MESSAGE, "length-plus-1", "tail-zeros"}


# ---------------------------------------------------------------- parts


@pytest.mark.parametrize("folder", FOLDERS)
def test_parts_come_in_the_order_of_their_numbers(folder: str) -> None:
    entry = OFRECORD.files[folder]
    found = ofrecord.expand_parts(OFRECORD.path(folder))
    assert [os.path.basename(path) for path in found] == entry["parts"]
    assert [len(load(Path(path))) for path in found] == entry["counts"]


def test_only_parts_count(tmp_path: Path) -> None:
    for name in ("part-00000", "part-00001", "_SUCCESS", ".part-00000.crc", "part-x", "part-00000.idx"):
        path_of(tmp_path, name, b"")
    found = ofrecord.expand_parts(tmp_path)
    assert [os.path.basename(path) for path in found] == ["part-00000", "part-00001"]
    assert ofrecord.expand_parts(tmp_path / "part-x") == [str(tmp_path / "part-x")]
    path_of(tmp_path, "train-0", b"")
    assert ofrecord.expand_parts(tmp_path, "train-") == [str(tmp_path / "train-0")]


@pytest.mark.parametrize(
    ("names", "error", "problem"),
    [
        (["part-0", "part-2"], SourceNotFoundError, r"part 1 missing \(there are 2 of 3\)"),
        (["part-1"], SourceNotFoundError, "part 0 missing"),
        (["part-999999999"], SourceNotFoundError, "part 0, 1, 2, 3, 4 and 999999994 more missing"),
        (["part-0", "part-1", "part-01"], FormatError, "part-01 and part-1 have the same number"),
        (["other"], SourceNotFoundError, "no parts"),
        ([], SourceNotFoundError, "no parts"),
    ],
)
def test_missing_and_doubled_parts_are_refused(tmp_path: Path, names: list[str], error: Any, problem: str) -> None:
    for name in names:
        path_of(tmp_path, name, b"")
    with pytest.raises(error, match=problem):
        ofrecord.expand_parts(tmp_path)


# ---------------------------------------------------------------- required by protobuf


def field(number: int, value: bytes, wire: int = 2) -> bytes:
    head = bytes([number << 3 | wire])
    return head + (bytes([len(value)]) if wire == 2 else b"") + value


def entry(*features: bytes, name: bytes = b"a") -> bytes:
    return field(1, field(1, name) + b"".join(field(2, feature) for feature in features))


MINUS_ONE = b"\xff" * 9 + b"\x01"

ACCEPTED = {
    "numbers that are not packed": (entry(field(4, field(1, b"\x05", 0) + field(1, b"\x06", 0))), np.int32, [5, 6]),
    "packed and not": (entry(field(4, field(1, b"\x05\x06") + field(1, b"\x07", 0))), np.int32, [5, 6, 7]),
    "floats that are not packed": (entry(field(2, field(1, struct.pack("<f", 0.5), 5) * 2)), np.float32, [0.5, 0.5]),
    "doubles that are not packed": (entry(field(3, field(1, struct.pack("<d", 0.5), 1))), np.float64, [0.5]),
    "a list in pieces": (entry(field(5, field(1, b"\x01")) + field(5, field(1, b"\x02"))), np.int64, [1, 2]),
    "a feature in pieces": (entry(field(5, field(1, b"\x01")), field(5, field(1, b"\x02"))), np.int64, [1, 2]),
    "a repeated name": (entry(field(5, field(1, b"\x01"))) + entry(field(4, field(1, b"\x02"))), np.int32, [2]),
    "two kinds": (entry(field(5, field(1, b"\x01")) + field(4, field(1, b"\x02"))), np.int32, [2]),
    "a kind that comes back": (
        entry(field(5, field(1, b"\x01")) + field(4, field(1, b"\x02")) + field(5, field(1, b"\x03"))),
        np.int64,
        [3],
    ),
    "the value before the name": (field(1, field(2, field(5, field(1, b"\x07"))) + field(1, b"a")), np.int64, [7]),
    "a negative int32 of ten bytes": (entry(field(4, field(1, MINUS_ONE + b"\x01"))), np.int32, [-1, 1]),
    "a negative int32 of five bytes": (entry(field(4, field(1, b"\xff\xff\xff\xff\x0f"))), np.int32, [-1]),
    "an int32 of more bits": (entry(field(4, field(1, b"\x81\x80\x80\x80\x80\x01"))), np.int32, [1]),
    "unknown fields": (
        field(9, b"x") + entry(field(9, b"y") + field(5, field(1, b"\x07") + field(7, b"z"))),
        np.int64,
        [7],
    ),
    "an empty list": (entry(field(3, b"")), np.float64, []),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_protobuf_allows_is_read(name: str) -> None:
    message, dtype, values = ACCEPTED[name]
    found = ofrecord.decode(message)
    assert list(found) == ["a"]
    assert isinstance(found["a"], np.ndarray)
    assert (found["a"].dtype, found["a"].tolist()) == (dtype, values)


def test_a_feature_without_a_kind_is_none() -> None:
    assert ofrecord.decode(entry(b"")) == {"a": None}
    assert ofrecord.decode(field(1, field(1, b"a"))) == {"a": None}
    assert ofrecord.decode(ofrecord.encode({"a": None})) == {"a": None}
    assert ofrecord.decode(field(1, b"")) == {"": None}


def test_any_byte_of_a_message_changed_gives_what_the_specification_gives() -> None:
    for changed in changes(OFRECORD.records("five-kinds/part-0")[1]):
        one_input(bytes([MESSAGE]) + changed)


# ---------------------------------------------------------------- encoding


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (1, np.int64),
        ([1, 2], np.int64),
        (0.5, np.float64),
        (np.float32(0.5), np.float32),
        (np.array([1], np.int32), np.int32),
        (np.array([1], np.uint16), np.int32),
        (np.array([1], np.uint32), np.int64),
        (np.array([True]), np.int32),
        (np.array([0.5], np.float16), np.float32),
    ],
    ids=str,
)
def test_arrays_are_of_the_narrowest_kind_that_holds_their_type(value: Any, dtype: Any) -> None:
    found = ofrecord.decode(ofrecord.encode({"a": value}))["a"]
    assert isinstance(found, np.ndarray)
    assert (found.dtype, found.tolist()) == (dtype, np.asarray(value).reshape(-1).tolist())


def test_kinds_can_be_chosen() -> None:
    kinds = {"label": "int32_list", "score": "float_list", "none": "double_list", "text": "bytes_list"}
    message = ofrecord.encode({"label": 3, "score": [0.5, 1], "none": [], "text": "x"}, kinds)
    found = ofrecord.decode(message)
    assert [found[name].dtype for name in ("label", "score", "none")] == [np.int32, np.float32, np.float64]  # type: ignore[union-attr]
    assert found["text"] == [b"x"]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (2**31, "int32_list"),
        (-(2**31) - 1, "int32_list"),
        (0.5, "int64_list"),
        (1e39, "float_list"),
        (b"text", "int64_list"),
        ([1, 2], "bytes_list"),
        (1, "no_list"),
    ],
)
def test_what_does_not_fit_a_kind_is_refused(value: Any, kind: str) -> None:
    with pytest.raises(UsageError, match="feature 'a'"):
        ofrecord.encode({"a": value}, {"a": kind})


@pytest.mark.parametrize("kind", ["int32_list", "int64_list", "float_list", "double_list"])
def test_an_empty_list_is_of_any_kind(kind: str) -> None:
    assert ofrecord.encode({"a": []}, {"a": kind}) == ofrecord.encode({"a": np.zeros(0)}, {"a": kind})


def test_a_kind_for_a_feature_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="'b'"):
        ofrecord.encode({"a": 1}, {"b": "int32_list"})


def test_names_are_written_in_the_order_of_their_bytes() -> None:
    names = ["é", "z", "", "a/b", "a", "\U0001f600", "\uffff"]
    message = ofrecord.encode(dict.fromkeys(names, 1))
    assert list(ofrecord.decode(message)) == sorted(names, key=str.encode)
    assert message == ofrecord.encode(dict.fromkeys(reversed(names), 1))


def test_a_part_is_what_oneflow_reads(tmp_path: Path) -> None:
    messages = [ofrecord.encode({"label": np.array([k], np.int32), "encoded": b"jpeg"}) for k in range(3)]
    with ofrecord.OFRecordWriter(tmp_path / "part-0") as writer:
        for message in messages:
            writer.write_one(message)
    assert (tmp_path / "part-0").read_bytes() == b"".join(map(of_frame, messages))
