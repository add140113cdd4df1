"""TFRecord: golden files are read exactly and written as the same bytes; damage is an error."""

from __future__ import annotations

import gzip
import itertools
import os
import random
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import NoArray
from frame_files import (
    TFRECORD,
    agrees,
    assert_says_where,
    assert_whole_before,
    changes,
    crc32c,
    path_of,
    tf_frame,
    tf_head,
)
from fuzz.fuzz_tfrecord import EXAMPLE, SEQUENCE, one_input
from golden_files import sha256
from inside import CHECK_CRC32C, LocalFile, RecordIndex, ofrecord_files
from inside import tfrecord_files as files

from fffs import tfrecord
from fffs.errors import (
    ChecksumError,
    ClosedError,
    FormatError,
    MetadataError,
    SourceNotFoundError,
    UnsupportedError,
    UsageError,
)
from fffs.tfrecord import FrameError, MessageError

PLAIN = TFRECORD.single(compression=None)
COMPRESSED = [*TFRECORD.single(compression="GZIP"), *TFRECORD.single(compression="ZLIB")]
ENTRIES = TFRECORD.files


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FFFS_CACHE", "off")


def load(path: Path, **options: Any) -> RecordIndex:
    with LocalFile.open(path) as file:
        return files.load_index(file, **options)


# ---------------------------------------------------------------- golden files


def test_the_golden_files_are_all_here() -> None:
    assert len(PLAIN) >= 9
    assert len(COMPRESSED) == 3
    for path in (*PLAIN, *COMPRESSED):
        assert sha256(TFRECORD.bytes(path)) == ENTRIES[path]["sha256"]


@pytest.mark.parametrize("path", PLAIN)
def test_the_index_is_that_of_the_manifest(path: str) -> None:
    index, rows = load(TFRECORD.path(path)), ENTRIES[path]["records"]
    assert index.starts.tolist() == [row["data_offset"] for row in rows]
    assert (index.ends - index.starts).tolist() == [row["len"] for row in rows]
    assert index.checksums is not None
    assert [f"{crc:08x}" for crc in index.checksums] == [row["crc32c"] for row in rows]
    assert (index.check, index.file_size) == (CHECK_CRC32C, ENTRIES[path]["size"])


@pytest.mark.parametrize("path", [*PLAIN, *COMPRESSED])
def test_reading_in_sequence_gives_every_record(path: str) -> None:
    entry = ENTRIES[path]
    with tfrecord.read(TFRECORD.path(path)) as stream:
        records = list(stream)
    assert [sha256(record) for record in records] == [row["sha256"] for row in entry["records"]]
    assert sha256(b"".join(records)) == entry["concat_sha256"]
    with pytest.raises(ClosedError):
        next(stream)


@pytest.mark.parametrize("path", PLAIN)
def test_the_writer_gives_the_same_bytes(tmp_path: Path, path: str) -> None:
    with tfrecord.TFRecordWriter(tmp_path / "file") as writer:
        for record in TFRECORD.records(path):
            writer.write_one(record)
    assert (tmp_path / "file").read_bytes() == TFRECORD.bytes(path)


def messages(*contents: str) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield the golden messages of some kinds, each with its description in the manifest."""
    for path in PLAIN:
        if ENTRIES[path]["content"] in contents:
            yield from zip(TFRECORD.records(path), ENTRIES[path]["records"], strict=True)


def test_examples_decode_to_what_the_manifest_says_and_encode_to_the_same_bytes() -> None:
    seen = 0
    for message, row in messages("example", "image", "pypi"):
        features = tfrecord.decode(message)
        assert list(features) == list(row["features"])
        assert all(agrees(row["features"][name], value) for name, value in features.items())
        assert tfrecord.encode(features) == message
        seen += 1
    assert seen >= 30


def test_sequence_examples_decode_to_what_the_manifest_says_and_encode_to_the_same_bytes() -> None:
    seen = 0
    for message, row in messages("sequence"):
        found, expected = tfrecord.decode_sequence(message), row["sequence"]
        assert list(found["context"]) == list(expected["context"])
        assert all(agrees(expected["context"][name], value) for name, value in found["context"].items())
        assert list(found["feature_lists"]) == list(expected["feature_lists"])
        for name, values in found["feature_lists"].items():
            lists = expected["feature_lists"][name]
            assert [agrees(*pair) for pair in zip(lists, values, strict=True)] == [True] * len(lists)
        assert tfrecord.encode_sequence(found["context"], found["feature_lists"]) == message
        with pytest.raises(MessageError, match="decode_sequence"):
            tfrecord.decode(message)
        seen += 1
    assert seen == 8


@pytest.mark.parametrize("path", [*PLAIN, *COMPRESSED])
def test_golden_files_are_recognised_and_others_are_not(path: str) -> None:
    data = TFRECORD.bytes(path)
    assert files.recognise(data[:64], len(data), path)
    if len(data) >= 12 and path in PLAIN:
        assert files.recognise(data[:64], len(data), "no-name-at-all")
    assert not ofrecord_files.recognise(data[:64], len(data), "name")


def test_other_files_are_not_recognised(golden: Any) -> None:
    for path in golden.of_kind("records", "packed"):
        assert not files.recognise(golden.bytes(path)[:64], len(golden.bytes(path)), path)
    assert not files.recognise(b"", 0, "file")
    assert not files.recognise(b"0 16\n", 5, "a.tfrecord.idx")


# ---------------------------------------------------------------- damaged files

DAMAGED = list(TFRECORD.corruptions)
RECORD = {
    "length-bit": (10, 1521),
    "length-crc-bit": (10, 1521),
    "length-huge": (10, 1521),
    "length-max": (10, 1521),
} | {
    "tail-zeros": (20, 3257),
    "tail-byte": (20, 3257),
    "not-tfrecord": (0, 0),
    **{name: (19, 3021) for name in DAMAGED if name.startswith("cut-")},
}
"""The end of the good frames of each damaged file: record and offset."""


@pytest.mark.parametrize("name", RECORD)
def test_a_damaged_frame_is_an_error_that_names_file_record_and_offset(tmp_path: Path, name: str) -> None:
    record, offset = RECORD[name]
    path = path_of(tmp_path, "file", TFRECORD.corrupt(name))
    with pytest.raises(FrameError) as caught:
        load(path)
    assert_says_where(caught.value, path, record, offset)
    assert_whole_before(files, path, good(name)[:record], caught.value)


def good(name: str) -> list[bytes]:
    """Return the records of the file that a damaged one was made from."""
    return TFRECORD.records(TFRECORD.corruptions[name]["base"])


@pytest.mark.parametrize("name", ["data-bit", "data-crc-bit"])
def test_damaged_data_hits_one_record(tmp_path: Path, name: str) -> None:
    path = path_of(tmp_path, "file", TFRECORD.corrupt(name))
    index, data = load(path), path.read_bytes()
    assert index.checksums is not None
    rows = zip(index.starts, index.ends, index.checksums, strict=True)
    assert [k for k, (a, b, crc) in enumerate(rows) if crc32c(data[a:b]) != crc] == [10]
    records = tfrecord.read(path)
    assert [next(records) for _ in range(10)] == good(name)[:10]
    with pytest.raises(ChecksumError, match=r"file: record 10, whose frame begins at offset 1521:") as caught:
        next(records)
    assert (caught.value.path, caught.value.record) == (str(path), 10)
    assert list(records) == good(name)[11:]


@pytest.mark.parametrize("name", [name for name in DAMAGED if not name.startswith("data-")])
def test_reading_a_damaged_file_in_sequence_gives_the_records_before_it(tmp_path: Path, name: str) -> None:
    path = path_of(tmp_path, "file", TFRECORD.corrupt(name))
    base = TFRECORD.corruptions[name]["base"]
    expected = good(name) if base in PLAIN else TFRECORD.records(base.removesuffix(".gz"))
    found: list[bytes] = []
    with tfrecord.read(path) as stream, pytest.raises(FrameError) as caught:
        for record in stream:
            found.append(record)
    assert found == expected[: len(found)]
    assert caught.value.record == len(found)
    assert str(caught.value).startswith(f"{path}: record {len(found)}, whose frame begins at offset ")
    assert len(found) == RECORD[name][0] if name in RECORD else len(found) < len(expected)
    assert name != "gz-cut" or len(found) >= 8


def test_every_damaged_variant_has_a_test() -> None:
    assert set(DAMAGED) == {*RECORD, "data-bit", "data-crc-bit", "gz-cut", "gz-bit"}


def test_every_bit_of_a_file_is_checked(tmp_path: Path) -> None:
    data = tf_frame(b"first") + tf_frame(b"") + tf_frame(b"third")
    records = [b"first", b"", b"third"]
    path = tmp_path / "file"
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        found: list[Any] = []
        with tfrecord.read(path) as stream, pytest.raises((FrameError, ChecksumError)):
            for record in stream:
                found.append(record)
        assert found == records[: len(found)]


def test_without_checks_lengths_are_believed_where_the_file_can_hold_them(tmp_path: Path) -> None:
    path = path_of(tmp_path, "file", TFRECORD.corrupt("length-crc-bit"))
    assert len(load(path, check_data=False)) == 20
    with pytest.raises(FrameError, match="claims"):
        load(path_of(tmp_path, "huge", TFRECORD.corrupt("length-huge")), check_data=False)


# ---------------------------------------------------------------- compressed files


@pytest.mark.parametrize("path", ["example.tfrecord.gz", "example.tfrecord.zlib", "empty.tfrecord.gz"])
def test_a_compressed_file_has_no_index(path: str) -> None:
    kind = ENTRIES[path]["compression"]
    with pytest.raises(UnsupportedError, match=rf"compressed as a whole \({kind}\).*fffs\.tfrecord\.read"):
        load(TFRECORD.path(path))


def test_a_length_that_looks_like_a_compressed_file_is_none(tmp_path: Path) -> None:
    for length in (0x088B1F, 0x9C78, 0x0178):
        data = tf_frame(bytes(length))
        assert data[:2] in (b"\x1f\x8b", b"\x78\x9c", b"\x78\x01")
        assert len(load(path_of(tmp_path, "file", data))) == 1


def test_several_gzip_members_are_one_file(tmp_path: Path) -> None:
    data = TFRECORD.bytes("example.tfrecord")
    for cuts in ([0], [500], [1, 2, 3], [1521, 1521]):
        bounds = [0, *cuts, len(data)]
        members = [gzip.compress(data[a:b]) for a, b in itertools.pairwise(bounds)]
        with tfrecord.read(path_of(tmp_path, "file", b"".join(members))) as stream:
            assert list(stream) == TFRECORD.records("example.tfrecord")


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
def test_a_compressed_file_cut_anywhere_is_an_error(tmp_path: Path, compress: Any) -> None:
    data = compress(b"".join(tf_frame(bytes([k]) * 10) for k in range(3)))
    for size in range(2, len(data)):
        with tfrecord.read(path_of(tmp_path, "file.gz", data[:size])) as stream, pytest.raises(FrameError):
            list(stream)


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
def test_bytes_behind_a_compressed_stream_are_an_error(tmp_path: Path, compress: Any) -> None:
    with tfrecord.read(path_of(tmp_path, "file", compress(tf_frame(b"data")) + b"more")) as stream:
        assert next(stream) == b"data"
        with pytest.raises(FrameError, match="compressed data"):
            next(stream)
        assert next(stream, None) is None


def test_zeros_behind_a_compressed_file_are_padding(tmp_path: Path) -> None:
    for k, size in enumerate((1, 511, 1 << 20)):
        padded = gzip.compress(tf_frame(b"one")) + bytes(size) + gzip.compress(tf_frame(b"two")) + bytes(size)
        with tfrecord.read(path_of(tmp_path, str(k), padded)) as stream:
            assert list(stream) == [b"one", b"two"]
    with tfrecord.read(path_of(tmp_path, "zlib", zlib.compress(tf_frame(b"one")) + bytes(512))) as stream:
        assert list(stream) == [b"one"]


def test_a_record_larger_than_allowed_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = path_of(tmp_path, "file", gzip.compress(tf_frame(b"small") + tf_frame(bytes(100_000))))
    with tfrecord.read(path, max_record=99_999) as stream:
        assert next(stream) == b"small"
        with pytest.raises(FrameError, match="100000 bytes, but max_record is 99999"):
            next(stream)
    with tfrecord.read(path, max_record=100_000) as stream:
        assert [len(record) for record in stream] == [5, 100_000]


@pytest.mark.parametrize("compress", [bytes, gzip.compress, zlib.compress])
def test_more_than_the_rest_of_the_file_can_hold_is_refused_at_once(tmp_path: Path, compress: Any) -> None:
    data = compress(tf_frame(b"good") + tf_head(1 << 29) + bytes(1000))
    with tfrecord.read(path_of(tmp_path, "file", data)) as stream:
        assert next(stream) == b"good"
        with pytest.raises(FrameError, match="record 1, whose frame begins at offset 20: it claims 536870912 bytes"):
            next(stream)


def test_large_compressed_records_come_out_whole(tmp_path: Path) -> None:
    chance = random.Random(5)
    records = [chance.randbytes(k) for k in (700_000, 0, 262_144, 3)] + [bytes(3_000_000)]
    data = zlib.compress(b"".join(map(tf_frame, [records[1], records[3]])) + frames_of(records))
    with tfrecord.read(path_of(tmp_path, "file", data)) as stream:
        assert list(stream) == [records[1], records[3], *records]


def frames_of(records: list[bytes]) -> bytes:
    """Return frames with checksums by fffs, because those of the tests are slow. The writer is tested above."""
    return b"".join(
        tf_head(len(record)) + record + files.TAIL.pack(files.mask(files.crc32c(record))) for record in records
    )


# ---------------------------------------------------------------- messages


def test_values_of_many_types_become_the_three_kinds() -> None:
    found = tfrecord.decode(
        tfrecord.encode(
            {
                "int": 5,
                "bool": True,
                "ints": [1, -1, 2**63 - 1, -(2**63)],
                "uint8": np.arange(3, dtype=np.uint8),
                "big-endian": np.array([1, 2], ">i4"),
                "float": 0.5,
                "half": np.array([1.5], np.float16),
                "doubles": np.array([0.1, np.inf, np.nan]),
                "text": "naïve",
                "bytes": [b"", bytearray(b"a"), memoryview(b"b"), "c"],
                "nothing": [],
                "no floats": np.empty(0, np.float32),
                "no kind": None,
                "": b"empty name",
                "../\0": b"any name",
            }
        )
    )
    assert found["ints"].tolist() == [1, -1, 2**63 - 1, -(2**63)]  # type: ignore[union-attr]
    assert [found[name].tolist() for name in ("int", "bool", "uint8", "big-endian")] == [[5], [1], [0, 1, 2], [1, 2]]  # type: ignore[union-attr]
    assert all(found[name].dtype == np.float32 for name in ("float", "half", "doubles", "no floats"))  # type: ignore[union-attr]
    assert found["doubles"][:2].tolist() == [np.float32(0.1), np.inf]  # type: ignore[index, union-attr]
    assert np.isnan(found["doubles"][2])  # type: ignore[index]
    assert (found["text"], found["bytes"]) == (["naïve".encode()], [b"", b"a", b"b", b"c"])
    assert (found["nothing"], len(found["no floats"]), found["no kind"]) == ([], 0, None)  # type: ignore[arg-type]
    assert (found[""], found["../\0"]) == ([b"empty name"], [b"any name"])


@pytest.mark.parametrize(
    "value",
    [
        2**63,
        -(2**63) - 1,
        np.array([2**63], np.uint64),
        np.zeros((2, 2)),
        [b"a", 1],
        [1, b"a"],
        [1, "a"],
        {"a": 1},
        np.array(["text"]),
        np.array([1 + 2j]),
        np.array([None]),
        [[1], [2, 3]],
        [-7, 2**63 + 5],
        (np.uint64(2**63), np.int64(-1)),
        [np.array(2**63, np.uint64), np.array(-1)],
        np.ma.masked_array([1, 2], mask=[False, True]),
        [1.5, np.ma.masked],
        1e300,
        np.array([1e39]),
        "\ud800",
        NoArray(),
    ],
    ids=str,
)
def test_what_cannot_be_encoded_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match="feature 'name'"):
        tfrecord.encode({"name": value})


def test_a_view_of_objects_is_no_bytes() -> None:
    with pytest.raises(UsageError, match="feature 'x': an array of objects holds addresses"):
        tfrecord.encode({"x": [memoryview(np.array(["a"], object))]})


def test_tensors_and_empty_arrays_are_what_their_dtype_says() -> None:
    import torch

    values = {"a": torch.tensor([1, 2]), "b": torch.tensor(3), "c": torch.zeros(0, dtype=torch.int64), "d": np.int32(4)}
    decoded = tfrecord.decode(tfrecord.encode(values))
    assert {name: (list(value), value.dtype) for name, value in decoded.items() if name != "c"} == {
        "a": ([1, 2], np.int64),
        "b": ([3], np.int64),
        "d": ([4], np.int64),
    }
    assert tfrecord.encode({"c": values["c"]}) == tfrecord.encode({"c": np.zeros(0, np.int64)})
    assert tfrecord.encode({"c": values["c"]}) != tfrecord.encode({"c": []})


def test_names_must_be_text() -> None:
    for name in (b"bytes", 5, "\ud800"):
        with pytest.raises(UsageError, match="name"):
            tfrecord.encode({name: 1})  # type: ignore[dict-item]


def test_decoded_arrays_are_the_callers() -> None:
    message = tfrecord.encode({"a": [1, 2], "b": [0.5]})
    first = tfrecord.decode(memoryview(message))
    first["a"][0] = 7  # type: ignore[index]
    second = tfrecord.decode(np.frombuffer(message, np.uint8))
    assert (first["a"].tolist(), second["a"].tolist()) == ([7, 2], [1, 2])  # type: ignore[union-attr]
    with pytest.raises(TypeError):
        tfrecord.decode(5)


def test_a_cut_message_never_gives_more_than_it_holds() -> None:
    message = TFRECORD.records("example.tfrecord")[1]
    whole = tfrecord.decode(message)
    for size in range(len(message)):
        try:
            found = tfrecord.decode(message[:size])
        except MessageError as error:
            assert isinstance(error, FormatError)
            assert "message" in str(error)
        else:
            assert size == 0
            assert found == {} != whole


def test_any_byte_of_a_message_changed_gives_what_the_specification_gives() -> None:
    examples, sequences = list(messages("example")), list(messages("sequence"))
    for what, message in ((EXAMPLE, examples[1][0]), (SEQUENCE, sequences[1][0])):
        for changed in changes(message):
            one_input(bytes([what]) + changed)


# ---------------------------------------------------------------- index files


INDEXED = [path for path in PLAIN if "index_file" in ENTRIES[path]]


@pytest.mark.parametrize("path", INDEXED)
def test_index_files_are_read_and_written_as_others_do(tmp_path: Path, path: str) -> None:
    described = ENTRIES[path]["index_file"]
    source = TFRECORD.path(path)
    index = load(source)
    tfrecord.check_index_file(index, TFRECORD.path(described["path"]))
    tfrecord.export_index(index, tmp_path / "index")
    assert sha256((tmp_path / "index").read_bytes()) == described["sha256"]


@pytest.mark.parametrize(
    ("text", "problem"),
    {
        "cut in a line": (b"0 16\n16 19\n35 2", "line 3 says"),
        "cut after a line": (b"0 16\n16 19\n", "ends after 2 lines"),
        "no line": (b"", "ends after 0 lines"),
        "one more": (b"0 16\n16 19\n35 20\n55 16\n", "line 4: .* has only 3 records"),
        "another length": (b"0 16\n16 20\n36 19\n", "line 2 says that record 1"),
        "another offset": (b"0 16\n17 19\n35 20\n", "line 2 says that record 1"),
        "another order": (b"16 19\n0 16\n35 20\n", "line 1 says"),
        "an empty line": (b"0 16\n\n16 19\n35 20\n", "line 2 is not"),
        "negative": (b"0 16\n-16 19\n35 20\n", "line 2 is not"),
        "too large": (b"0 16\n16 " + b"9" * 30 + b"\n35 20\n", "line 2 is not"),
        "text": (b"offset length\n", "line 1 is not"),
        "zeros": (bytes(100), "line 1 is not"),
    }.values(),
    ids=str,
)
def test_a_wrong_index_file_is_an_error_that_names_the_line(tmp_path: Path, text: bytes, problem: str) -> None:
    source = path_of(tmp_path, "file", b"".join(map(tf_frame, [b"", b"abc", b"four"])))
    listed = path_of(tmp_path, "file.idx", text)
    with pytest.raises(MetadataError, match=problem) as caught:
        tfrecord.check_index_file(load(source), listed)
    assert str(caught.value).startswith(f"{listed}: ")


# ---------------------------------------------------------------- shards


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A folder with two sets of shards, their index files, and other files."""
    for k in range(3):
        path_of(tmp_path, tfrecord.shard_name("a.tfrecord", k, 3), b"")
        path_of(tmp_path, tfrecord.shard_name("a.tfrecord", k, 3) + ".idx", b"")
    for k in range(12):
        path_of(tmp_path, tfrecord.shard_name("b-train", k, 12, ".tfrecord"), b"")
    for name in ("single.tfrecord", "notes.txt", ".hidden.tfrecord"):
        path_of(tmp_path, name, b"")
    return tmp_path


def base_names(paths: list[str]) -> list[str]:
    return [os.path.basename(path) for path in paths]


A = [f"a.tfrecord-{k:05}-of-00003" for k in range(3)]
B = [f"b-train-{k:05}-of-00012.tfrecord" for k in range(12)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.tfrecord-?????-of-00003", A),
        ("a.tfrecord-*-of-00003", A),
        ("a.tfrecord@3", A),
        ("a.tfrecord", A),
        ("b-train", B),
        ("b-train.tfrecord", B),
        ("b-train@12.tfrecord", B),
        (A[1], A[1:2]),
        ("single.tfrecord", ["single.tfrecord"]),
        ("", [*A, *B, "single.tfrecord"]),
    ],
)
def test_a_name_means_its_shards_in_order(shards: Path, name: str, expected: list[str]) -> None:
    assert base_names(tfrecord.expand_shards(shards / name)) == expected


def test_golden_shards_are_found() -> None:
    expected = sorted(path for path in PLAIN if path.startswith("shards/"))
    found = tfrecord.expand_shards(TFRECORD.path("shards"))
    assert [os.path.relpath(path, TFRECORD.folder) for path in found] == expected


@pytest.mark.parametrize("name", ["a.tfrecord", "a.tfrecord@3", ""])
def test_a_missing_shard_is_named(shards: Path, name: str) -> None:
    (shards / A[1]).unlink()
    with pytest.raises(SourceNotFoundError, match=r"shard 1 missing \(there are 2 of 3\)"):
        tfrecord.expand_shards(shards / name)


def test_no_list_is_made_of_what_a_name_claims(tmp_path: Path) -> None:
    path_of(tmp_path, "x-00007-of-999999999", b"")
    with pytest.raises(SourceNotFoundError, match="shard 0, 1, 2, 3, 4 and 999999993 more missing"):
        tfrecord.expand_shards(tmp_path / "x")


def test_extra_shards_are_refused(shards: Path) -> None:
    path_of(shards, "a.tfrecord-00003-of-00003", b"")
    with pytest.raises(FormatError, match="is too large, the last is"):
        tfrecord.expand_shards(shards / "a.tfrecord")


def test_a_shard_twice_is_refused(shards: Path) -> None:
    path_of(shards, "a.tfrecord-1-of-3", b"")
    with pytest.raises(FormatError, match="have the same number"):
        tfrecord.expand_shards(shards / "a.tfrecord@3")


def test_another_set_with_a_shard_twice_does_not_matter(shards: Path) -> None:
    for name in ("other-1-of-2", "other-01-of-2"):
        path_of(shards, name, b"")
    assert base_names(tfrecord.expand_shards(shards / "a.tfrecord")) == A
    assert base_names(tfrecord.expand_shards(shards / "a.tfrecord@3")) == A
    with pytest.raises(FormatError, match="other-1-of-2 have the same number"):
        tfrecord.expand_shards(shards)


def test_two_sets_of_one_name_must_be_told_apart(shards: Path) -> None:
    path_of(shards, "a.tfrecord-00000-of-00001", b"")
    with pytest.raises(UsageError, match="several sets"):
        tfrecord.expand_shards(shards / "a.tfrecord")
    assert base_names(tfrecord.expand_shards(shards / "a.tfrecord@1")) == ["a.tfrecord-00000-of-00001"]


def test_what_is_not_there_is_not_found(shards: Path) -> None:
    for name in ("c.tfrecord", "c@4", "missing/c.tfrecord"):
        with pytest.raises(SourceNotFoundError):
            tfrecord.expand_shards(shards / name)
    with pytest.raises(UsageError):
        tfrecord.shard_name("x", 3, 3)
