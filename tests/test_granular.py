"""Data sets of all versions of granular: read exactly, written byte for byte; damaged ones are refused or repaired."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import pickle
import random
import shutil
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import granular_golden as golden
import msgpack
import numpy as np
import pytest
from builders import NoArray, as_nobody
from crowd import find_problems
from fuzz import fuzz_granular
from fuzz.edits import random_edits
from golden_files import sha256
from inside import TornTailWarning, bounded_msgpack, codecs, engine, refs
from PIL import Image

from fffs.errors import (
    ClosedError,
    FffsError,
    MetadataError,
    ReadError,
    RecordError,
    RecordIndexError,
    SourceNotFoundError,
    TruncatedError,
    UsageError,
    WriteError,
    WriterError,
)
from fffs.granular import (
    BagWriter,
    DatasetReader,
    DatasetWriter,
    ShardedDatasetReader,
    ShardedDatasetWriter,
    decoders,
    decoders_0_6,
    encoders,
    encoders_0_6,
)

MIB = 1 << 20


def opened(path: str | Path, **options: Any) -> Any:
    """Open a golden data set."""
    told = golden.FILES[str(path)]
    kind = DatasetReader if told["kind"] == "dataset" else ShardedDatasetReader
    return kind(golden.FOLDER / path, spec=told.get("spec_given"), **options)


# ---------------------------------------------------------------- golden files


@pytest.mark.parametrize("path", golden.DATASETS)
def test_every_value_of_a_golden_data_set_is_read(path: str) -> None:
    told = golden.FILES[path]
    with opened(path) as reader:
        assert len(reader) == told["n"] == len(told["points"])
        assert reader.spec == (told["spec"] or told["spec_given"])
        if told["size_reported"]["reader"] is not None:
            assert reader.size == told["size_reported"]["reader"]
        for k, point in enumerate(told["points"]):
            assert golden.matches_row(reader[k], point), k
        assert all(map(golden.matches_row, reader, told["points"]))
        if told["kind"] != "dataset":
            assert reader.shards == len(told["shards"])


# In 0.6.0 an empty range omitted the key; later versions return an empty list, as fffs does.
SINCE_0_6 = {("granular-0.6.0/datasets/basic", 3): {"frames": []}}


def selected(select: Any) -> Any:
    """Decode a mask of the manifest."""
    if not isinstance(select, dict):
        return select
    return {key: range(*part[1]) if isinstance(part, list) else part for key, part in select.items()}


QUERIES = [(path, k) for path in golden.DATASETS for k in range(len(golden.FILES[path].get("queries", [])))]


@pytest.mark.parametrize(("path", "number"), QUERIES)
def test_a_partial_read_gives_what_granular_gave(path: str, number: int) -> None:
    query = golden.FILES[path]["queries"][number]
    index = range(*query["index"][1]) if isinstance(query["index"], list) else query["index"]
    mask = selected(query["select"])
    with opened(path) as reader:
        if "result" in query:
            expected = SINCE_0_6.get((path, number), query["result"])
            assert golden.matches_row(reader[index, mask], expected)
        elif isinstance(index, range):  # not supported by 0.19.0 and 0.21.2
            rows = [reader[k, mask] for k in index]
            assert reader[index, mask] == {key: [row[key] for row in rows] for key in mask}
        elif index == -1:
            assert reader[index, ["k"] if "k" in reader.spec else ["id"]] is not None  # as in any Python sequence
        else:
            with pytest.raises((UsageError, RecordIndexError)):
                reader[index, mask]


def test_a_range_of_a_sequence_is_clipped_and_a_slice_counts_from_its_end() -> None:
    with opened("granular-0.19.0/datasets/basic") as reader:
        whole = reader[2]["caps"]
        assert len(whole) == 4
        for part in (slice(-2, None), slice(None, None, -1), slice(3), slice(-1, -3, -1)):
            assert reader[2, {"caps": part}] == {"caps": whole[part]}
        for part in (range(-5, 2), range(1, 2**62, 2), range(9, -9, -3), range(2**63, 2**64), range(-3, 9, 2)):
            expected = [whole[k] for k in range(-9, 10) if k in part and 0 <= k < 4]
            assert reader[2, {"caps": part}] == {"caps": expected if part.step > 0 else expected[::-1]}


@pytest.mark.parametrize(
    "mask", ["name", 5, {"name": 1}, {"name": "x"}, {"nosuch": True}, ["nosuch"], {"name": range(1)}]
)
def test_a_mask_that_means_nothing_is_an_error(mask: Any) -> None:
    with opened("granular-0.6.0/datasets/basic") as reader, pytest.raises((UsageError, TypeError)):
        reader[0, mask]


# ---------------------------------------------------------------- one batch


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many requests the engine got in each batch, after everything was opened."""
    seen: list[int] = []
    original = engine.read_batch

    def read_batch(requests: Any) -> bool:
        seen.append(len(requests))
        return original(requests)

    monkeypatch.setattr(engine, "read_batch", read_batch)
    return seen


def test_a_batch_of_rows_of_many_shards_is_one_batch_of_the_engine(batches: list[int]) -> None:
    with opened("granular-0.24.2/datasets/two-writers") as reader:
        batches.clear()
        assert [row["k"] for row in reader.read([8, 0, 5, 0])] == [28, 0, 21, 0]
        assert batches == [8]


def test_only_the_blobs_that_are_asked_for_are_read(batches: list[int]) -> None:
    with opened("granular-0.6.0/datasets/basic") as reader:
        batches.clear()
        reader[2, {"frames": range(1, 3), "name": True, "tags": range(0, 0)}]
        assert batches == [1, 3]  # the row of refs.bag, then the blobs
        batches.clear()
        assert reader[2, {}] == reader[2, {"name": False}] == {}
        reader[1:3]
        assert (
            batches
            == [2, 2 * 6 + sum(len(reader[k]["frames"]) + len(reader[k]["tags"]) for k in (1, 2))][:2] + batches[2:]
        )


# ---------------------------------------------------------------- writing as granular does


def raw_values(path: str) -> list[dict[str, Any]]:
    """Return the rows of a golden data set; blobs instead of values whose encoding is lossy."""
    told = golden.FILES[path]
    lossless = {**decoders, "jpeg": bytes, "jpg": bytes, "png": bytes}
    with opened(path, decoders=lossless) as reader:
        rows = list(reader)
    for row, point in zip(rows, told["points"], strict=True):
        for key, value in point.items():
            # If possible, take the value from the manifest instead of the reader.
            if "sha256" not in json.dumps(value) and "lossy" not in json.dumps(value) and reader.spec[key] != "png":
                row[key] = golden.value_of(value)
    return rows


RAW_IMAGES = {**encoders, "jpeg": bytes, "jpg": bytes, "png": bytes}


def check_written(path: str, written: Path) -> None:
    """Check that the files have the checksums in the manifest."""
    found = {str(file.relative_to(written)): sha256(file.read_bytes()) for file in written.rglob("*") if file.is_file()}
    assert found == {name: told["sha256"] for name, told in golden.FILES[path]["files"].items()}


WHOLE = [
    (path, layout)
    for path, layout in itertools.product(golden.DATASETS, ("v1", "v3"))
    if golden.FILES[path]["kind"] == "dataset"
    and golden.FILES[path]["layout"] == {"v1": "starts", "v3": "sidecar"}[layout]
    and golden.FILES[path]["spec"]
]


@pytest.mark.parametrize(("path", "layout"), WHOLE)
def test_a_written_data_set_has_the_bytes_of_granulars(tmp_path: Path, path: str, layout: str) -> None:
    told = golden.FILES[path]
    with DatasetWriter(tmp_path / "x", told["spec"], RAW_IMAGES, layout) as writer:
        assert [writer.append(row) for row in raw_values(path)] == list(range(told["n"]))
        assert writer.spec == told["spec"]
        if told["size_reported"]["writer"] is not None and path != "granular-0.24.2/datasets/reopened":
            assert writer.size == told["size_reported"]["writer"]
        assert len(writer) == told["n"]
    check_written(path, tmp_path / "x")


SHARDED = [path for path in golden.DATASETS if golden.FILES[path]["kind"] != "dataset" and "0.21" not in path]


@pytest.mark.parametrize("path", SHARDED)
def test_written_shards_have_the_bytes_of_granulars(tmp_path: Path, path: str) -> None:
    told = golden.FILES[path]
    layout, rows = {"starts": "v1", "sidecar": "v3"}[told["layout"]], raw_values(path)
    if path.endswith("two-writers"):
        shares: list[tuple[list[Any], dict[str, Any]]] = [
            (rows[0:2] + rows[4:6] + rows[8:], {"shard_length": 2, "shard_step": 2}),
            (rows[2:4] + rows[6:8], {"shardlen": 2, "shardstart": 1, "shardstep": 2}),
        ]
    else:
        shares = [(rows, told.get("writer_args") or {"shard_length": 3})]
    for share, arguments in shares:
        with ShardedDatasetWriter(tmp_path, told["spec"], encoders, layout=layout, **arguments) as writer:
            assert [writer.append(row) for row in share] == list(range(len(share)))
        mine = [
            name for name in told["files"] if len(shares) == 1 or int(name[:6]) % 2 == arguments.get("shardstart", 0)
        ]
        assert writer.size == sum(told["files"][name]["size"] for name in mine if not name.endswith("spec.json"))
        assert (len(writer), writer.shards) == (len(share), len({name[:6] for name in mine}))
    check_written(path, tmp_path)


def test_a_data_set_without_rows_has_its_spec(tmp_path: Path) -> None:
    spec = {"k": "int(4)", "s": "utf8[]"}
    with DatasetWriter(tmp_path / "x", spec):
        pass
    golden_empty = golden.FOLDER / "granular-0.6.0/datasets/empty"
    for file in golden_empty.iterdir():
        assert (tmp_path / "x" / file.name).read_bytes() == file.read_bytes()
    assert (tmp_path / "x" / "spec.json").read_text() == '{"k": "int(4)", "s": "utf8[]"}'
    for layout in ("v1", "v3"):
        with ShardedDatasetWriter(tmp_path / layout, {"k": "u64"}, layout=layout, shard_size=None):
            pass
        with ShardedDatasetWriter(tmp_path / layout, {"k": "u64"}, layout=layout, shard_start=1, shard_step=2):
            pass
        with ShardedDatasetReader(tmp_path / layout) as reader:
            assert (len(reader), reader.shards, list(reader), reader[:]) == (0, 1, [], {"k": []})
    with DatasetReader(tmp_path / "x") as empty, pytest.raises(RecordIndexError):
        empty[0]


# ---------------------------------------------------------------- codecs

VALUES: list[tuple[str, Any]] = [
    ("bytes", b"\x00\xff"),
    ("utf8", "grün"),
    *(("int", number) for number in (0, 1, -1, 127, 128, -128, -129, 255, 2**40, -(2**63), 2**100)),
    ("int(8)", 2**64 - 1),
    ("i64", -(2**63)),
    ("u64", 2**64 - 1),
    ("msgpack", {"a": [1, None, True, 2.5, b"x"], "b": {}}),
    ("tree", {"a": [["_", 1, 2, 3], "_"], "b": None}),
    ("tree", [[[1] * 100] * 100, "x" * 10_000]),
]


@pytest.mark.parametrize(("kind", "value"), VALUES)
def test_a_value_comes_back_as_it_was(tmp_path: Path, kind: str, value: Any) -> None:
    for layout in ("v1", "v3"):
        with DatasetWriter(tmp_path / layout, {"x": kind}, layout=layout) as writer:
            writer.append({"x": value})
        with DatasetReader(tmp_path / layout) as reader:
            assert reader[0] == {"x": value}


def share(path: Path, row: list[Any]) -> None:
    """Make all nine rows of a data set the same one."""
    table = refs.encode(row) * 9
    ends = range(0, len(table) + 1, len(table) // 9)
    (path / "refs.bag").write_bytes(table + struct.pack("<10Q", *ends))


def test_a_batch_of_rows_that_share_blobs_is_refused(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "x", {"k": "bytes[]"}) as writer:
        for k in range(9):
            writer.append({"k": [b"%d" % k]})
    share(tmp_path / "x", [(0, 9)])
    with DatasetReader(tmp_path / "x") as reader:
        assert [row["k"][8] for row in reader.read([1] * 20)] == [b"8"] * 20
        assert [row["k"] for row in reader.read(range(9), {"k": slice(1, 2)})] == [[b"1"]] * 9
        with pytest.raises(MetadataError, match="its rows share blobs"):
            reader.read(range(9))


@pytest.mark.parametrize("spec", [{"k": "bytes"}, {"a": "bytes[]", "k": "bytes[]"}])
def test_rows_that_share_one_large_blob_are_refused(tmp_path: Path, spec: dict[str, str]) -> None:
    """Also of a scalar, and after a column without blobs."""
    with DatasetWriter(tmp_path / "x", spec) as writer:
        for k in range(9):
            blob = bytes(1000 if k == 0 else 1)
            writer.append({"k": blob} if "a" not in spec else {"a": [], "k": [blob]})
    row: list[Any] = [0] if "a" not in spec else [(0, 0), (0, 1)]
    share(tmp_path / "x", row)
    with DatasetReader(tmp_path / "x") as reader:
        assert len(reader.read([1] * 20)) == 20
        with pytest.raises(MetadataError, match="its rows share blobs"):
            reader.read(range(9))


ARRAYS = [np.arange(6, dtype=">i2").reshape(2, 3), np.array(5.5), np.zeros((0, 3), "f4"), np.arange(12).reshape(3, 4).T]
ARRAYS += [np.array(["ab", "c"]), np.array(["2024-01-01"], "M8[s]"), np.array([True, False]), np.array([1 + 2j])]
ARRAYS += [np.array([1, 2], "m8[25s]"), np.array(["2024-01-01"], "M8[10ns]"), np.array([b"abcd", b"efg"], "V4")]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: array.dtype.str)
def test_an_array_comes_back_with_its_dtype_and_shape(array: np.ndarray) -> None:
    dims = ",".join(map(str, array.shape))
    for name, arguments in (("array", ()), ("array", (array.dtype.str, *dims.split(","))) if dims else ("array", ())):
        again = decoders[name](encoders[name](array, *arguments), *arguments)
        assert again.dtype == array.dtype and again.shape == array.shape and (again == array).all()
    tree = decoders["tree"](encoders["tree"]({"x": [array]}))["x"][0]
    assert tree.dtype == array.dtype and (tree == array).all() and tree.shape == array.shape


MASKED = np.ma.masked_array([1, 2], mask=[False, True])
LOSSES: list[tuple[str, Any]] = [
    ("tree", ["_", "x", [], b""]),
    ("tree", {"a": ["_", "<i4", [1], bytes(4)]}),
    ("tree", [np.arange(2), ("_", "<i4", (1,), bytes(4))]),
    ("tree", {"a": MASKED}),
    ("array", MASKED),
    ("array", [1, np.ma.masked]),
    ("array", [2**63, -1]),
    ("array", [[2**63], [-1]]),
    ("array", [np.array(2**63, np.uint64), np.array(-1)]),
    ("array", [2**53 + 1, 0.5]),
    ("array", ["1", 2]),
    ("array", [b"a\0"]),
    ("array", [{}]),
    ("array", np.zeros(1, [("a", "i4")])),
    ("array", np.zeros((1,) * 33)),
    ("array(a4,1)", np.array([b"abcd"])),
    ("array(i4,1)", MASKED.astype("i4")),
    ("png", np.ma.masked_array(np.zeros((2, 2), np.uint8), mask=True)),
    ("bytes", MASKED),
    ("bytes", np.array(["a", None], object)),
    ("bytes", np.zeros(2, [("f", object), ("g", int)])),
    ("bytes", np.zeros(2, [("f", object), ("g", int)])[0]),
    *(("png", np.ones((2, 2), name)) for name in ("i1", "i2", "i4", "u4", "i8", "f2", "f4", "f8")),
    *(("png", np.ones(shape, np.uint8)) for shape in ((), (5,), (0, 5), (2, 2, 1), (2, 2, 5), (2, 2, 3, 1))),
    *(("png", np.ones((2, 2, 3), name)) for name in ("u2", "i1", "?")),
    *(("jpeg", np.ones((2, 2), name)) for name in ("?", "u2", "i4")),
    *(("jpeg", np.ones(shape, np.uint8)) for shape in ((5,), (0, 4, 3), (2, 2, 2), (2, 2, 4))),
    ("utf8", b"x"),
    ("utf8", "\ud800"),
    ("int", 1.5),
    ("int(1)", 256),
    ("int(1)", -1),
    ("i64", 2**63),
    ("u64", "x"),
    ("bytes", "x"),
    ("msgpack", {1: 2}),
    ("msgpack", 2**64),
    *((kind, NoArray()) for kind in ("array", "array(float32,2,2)", "tree", "png", "bytes")),
]


@pytest.mark.parametrize(("kind", "value"), LOSSES, ids=lambda value: str(value)[:24])
def test_a_value_that_would_not_come_back_as_it_was_is_refused(tmp_path: Path, kind: str, value: Any) -> None:
    with DatasetWriter(tmp_path / "x", {"key": kind}) as writer, pytest.raises(UsageError, match="x: 'key': "):
        writer.append({"key": value})
    assert len(DatasetReader(tmp_path / "x")) == 0


def test_images_come_back() -> None:
    pixels = np.random.default_rng(1).integers(0, 255, (5, 7, 4), np.uint8)
    wide = np.array([[300, 65535], [0, 1]], np.uint16)
    for image in (pixels, pixels[..., :2], pixels[:, ::-1, :3], pixels[..., 0].T, wide, wide > 1, wide.astype(">u2")):
        again = decoders["png"](encoders["png"](image))
        assert again.dtype == image.dtype.newbyteorder("=") and again.shape == image.shape and (again == image).all()
        assert again.tobytes() == image.astype(again.dtype).tobytes()  # Pillow has bytes of 255 in arrays of bool
    for image in (pixels[..., :3], pixels[..., 0]):
        for name in ("jpg", "jpeg"):
            again = decoders[name](encoders[name](image))
            assert again.shape == image.shape and again.dtype == np.uint8
    with pytest.raises(ValueError, match="not a valid PNG"):
        decoders["png"](encoders["jpg"](pixels[..., :3]))


def test_a_view_of_objects_is_no_bytes() -> None:
    with pytest.raises(UsageError, match="an array of objects holds addresses"):
        encoders["bytes"](memoryview(np.array(["a", None], object)))
    for name in ("O", "xOx"):
        assert len(encoders["bytes"](memoryview(np.zeros(2, [(name, np.int16)])))) == 4


def test_an_image_of_16_bits_is_uint16_where_pillow_reads_it_as_int32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow 10.0 does."""
    pillow = pytest.importorskip("PIL.Image")
    real = pillow.open
    blob = encoders["png"](np.array([[65535]], np.uint16))
    monkeypatch.setattr(pillow, "open", lambda *args, **more: real(*args, **more).convert("I"))
    monkeypatch.setattr(pillow.Image, "verify", lambda self: None)
    assert (decoders["png"](blob).dtype, decoders["png"](blob).tolist()) == (np.uint16, [[65535]])


def test_what_an_image_cannot_hold_is_refused_before_pillow_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow before 13 clips larger integers."""
    monkeypatch.delattr("PIL.Image.fromarray")
    for name in ("png", "jpeg"):
        with pytest.raises(UsageError, match=r"shape \(1, 2\) of int32, instead of \(height, width\) o"):
            encoders[name](np.array([[-1, 70000]], np.int32))


@pytest.mark.parametrize("name", ["png", "jpeg"])
def test_an_image_that_is_too_large_to_be_read_is_not_written(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.zeros((20, 10, 3), np.uint8)
    monkeypatch.setattr("fffs.granular.codecs.LARGEST_IMAGE", 600)
    assert decoders[name](encoders[name](pixels)).shape == pixels.shape
    monkeypatch.setattr("fffs.granular.codecs.LARGEST_IMAGE", 599)
    with pytest.raises(UsageError, match="could not be read back: an image of 10 by 20 pixels is too large"):
        encoders[name](pixels)
    monkeypatch.undo()
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 99)
    with pytest.raises(UsageError, match=r"could not be read back: .*200 pixels"):
        encoders[name](pixels)


def test_integers_of_0_6_are_unsigned_and_as_short_as_can_be() -> None:
    assert [encoders_0_6["int"](number) for number in (0, 1, 255, 256)] == [b"", b"\x01", b"\xff", b"\x00\x01"]
    assert [decoders_0_6["int"](blob) for blob in (b"", b"\x01", b"\xff", b"\x00\x01")] == [0, 1, 255, 256]
    assert [encoders["int"](number) for number in (0, 127, 128, -128)] == [b"\x00", b"\x7f", b"\x80\x00", b"\x80"]
    assert decoders["int"](b"") == 0
    with pytest.raises(UsageError):
        encoders_0_6["int"](-1)
    with pytest.raises(UsageError):
        encoders["int"](2**64, "8")


def test_codecs_of_the_user_get_the_arguments_of_the_type(tmp_path: Path) -> None:
    mine_in = {"pair": lambda value, *arguments: repr((value, arguments)).encode(), "int(8)": lambda value: b"whole"}
    mine_out = {"pair": lambda blob, *arguments: (blob.decode(), arguments), "int(8)": lambda blob: (blob,)}
    spec = {"a": "pair", "b": "pair(x,2)[]", "c": "int(8)", "d": "pair()"}
    with DatasetWriter(tmp_path / "x", spec, mine_in) as writer:
        writer.append({"a": 1, "b": [2, 3], "c": 4, "d": 5})
    with DatasetReader(tmp_path / "x", mine_out) as reader:
        assert reader[0] == {
            "a": ("(1, ())", ()),
            "b": [("(2, ('x', '2'))", ("x", "2")), ("(3, ('x', '2'))", ("x", "2"))],
            "c": (b"whole",),
            "d": ("(5, ())", ()),
        }
    with DatasetReader(tmp_path / "x") as reader:
        with pytest.raises(RecordError, match="an integer of 5 bytes, instead of 8"):
            reader[0, ["c"]]


def test_a_type_without_a_codec_is_said_when_it_is_needed(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "x", {"a": "mp4", "b": "utf8"}, encoders | {"mp4": bytes}) as writer:
        writer.append({"a": b"film", "b": "text"})
    with DatasetReader(tmp_path / "x") as reader:
        assert reader[0, ["b"]] == {"b": "text"}
        with pytest.raises(UsageError, match="no decoder for 'mp4', the type of 'a'"):
            reader[0]
    with pytest.raises(UsageError, match="no encoder for 'mp4', the type of 'a'"):
        DatasetWriter(tmp_path / "y", {"a": "mp4"})
    assert not (tmp_path / "y").exists()


@pytest.mark.parametrize(("module", "kind"), [("msgpack", "msgpack"), ("msgpack", "array"), ("PIL.Image", "png")])
def test_without_its_library_a_type_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, module: str, kind: str
) -> None:
    from inside import optional

    optional.library.cache_clear()
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=r"pip install 'fffs\[granular\]'"):
        decoders[kind](b"\x90")
    optional.library.cache_clear()


def test_reading_needs_no_library_of_the_extra() -> None:
    program = """
import sys
for name in ("msgpack", "PIL", "backports"): sys.modules[name] = None
from fffs.granular import DatasetReader
with DatasetReader(sys.argv[1]) as reader:
    print(reader[2, ["name", "tags", "vec", "id"]]["name"])
"""
    path = golden.FOLDER / "granular-0.6.0/datasets/basic"
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)
    assert done.stdout == "green\n"


# ---------------------------------------------------------------- damaged blobs

PNG = encoders["png"](np.zeros((4, 4, 3), np.uint8))


def png(width: int, height: int, data: bytes) -> bytes:
    """Return a grey PNG with that size in its header."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def nested(levels: int, claim: int) -> bytes:
    return (b"\xdd" + struct.pack(">I", claim)) * levels


BAD_BLOBS: list[tuple[str, bytes]] = [
    ("utf8", b"\xff\xfe"),
    ("i64", b"1234567"),
    ("u64", b""),
    ("int(4)", b"12345"),
    ("int(zero)", b"1234"),
    ("array(float32,3)", b"12345678901"),
    ("array(float32,-1)", b""),
    ("array(float32,1099511627776,16777216)", b"1234"),
    ("array(object,1)", b"12345678"),
    ("array(O,1)", b"12345678"),
    ("array(,1)", b"1"),
    ("array(nonsense,1)", b"1"),
    ("array", b""),
    ("array", b"\x93"),
    ("array", msgpack.packb(("<f4", (2,), b"1234567"))),
    ("array", msgpack.packb(("<f4", (-1,), b"1234"))),
    ("array", msgpack.packb(("<f4", (2**40, 2**40), b""))),
    ("array", msgpack.packb(("|O", (1,), b"12345678"))),
    ("array", msgpack.packb(("O8", (1,), b"12345678"))),
    ("array", msgpack.packb(("V0", (2**62,), b""))),
    ("array", msgpack.packb(("f4,O", (1,), b"123456789012"))),
    ("array", msgpack.packb(("<f4", (True,), b"1234"))),
    ("array", msgpack.packb(("<f4", [1] * 100, b"1234"))),
    ("array", msgpack.packb(("<f4", 1, b"1234"))),
    ("array", msgpack.packb([1, 2, 3, 4])),
    ("tree", msgpack.packb(["_", "|O", [1], b"12345678"])),
    ("tree", msgpack.packb([["_", "<f4", [3], b"1234"]])),
    ("msgpack", b"\xc1"),
    ("msgpack", b"\x01\x02"),
    ("msgpack", b"\xa5abc"),
    ("msgpack", b"\x81\x01\x02"),
    ("msgpack", b"\x81\x90\x02"),
    ("msgpack", b"\xa1\xff"),
    ("msgpack", b"\x91" * 2000),
    ("msgpack", b"\x91" * 300_000),
    ("msgpack", b"\x81\xa0" * 100_000),
    ("msgpack", nested(1, 2**32 - 1)),
    ("msgpack", nested(500, 2**32 - 1)),
    ("msgpack", nested(200_000, 2**32 - 1)),
    ("msgpack", nested(200, 990_000) + b"\0" * 1_000_000),
    ("msgpack", nested(200, 5000) + b"\0" * 5000),
    ("msgpack", b"\xc6\xff\xff\xff\xff"),
    ("msgpack", b"\xdf\xff\xff\xff\xff" * 2000),
    ("msgpack", nested(1, 4 << 20) + b"\x90" * (4 << 20)),
    ("msgpack", b"\x91" * 1100 + b"\x90"),
    ("msgpack", b"\xc7\xff"),
    ("tree", nested(1000, 7000) + b"\0" * 2000),
    ("png", b""),
    ("png", PNG[:50]),
    ("png", PNG[:-12]),
    *(("png", PNG[:at] + bytes([PNG[at] ^ 64]) + PNG[at + 1 :]) for at in (8, 16, 25, 30, 44, 50)),
    ("png", png(2**31 - 1, 2**31 - 1, b"")),
    ("png", png(13_000, 13_000, b"") if Image.MAX_IMAGE_PIXELS is None else png(100_000, 20_000, b"")),
    ("png", png(4, 4, b"\0\0")),
    ("jpg", encoders["jpg"](np.zeros((16, 16, 3), np.uint8))[:100]),
    ("jpg", PNG),
    ("jpeg", b"\xff\xd8\xff"),
]


@pytest.mark.parametrize(("kind", "blob"), BAD_BLOBS, ids=lambda value: str(value)[:24])
def test_a_blob_that_is_not_of_its_type_fails_its_row_alone(tmp_path: Path, kind: str, blob: bytes) -> None:
    name = kind.split("(", maxsplit=1)[0]
    with DatasetWriter(tmp_path / "x", {"good": "bytes", "key": kind}, {"bytes": bytes, name: lambda *a: a[0]}) as w:
        for _ in range(3):
            w.append({"good": b"fine", "key": blob})
    begin = time.process_time()
    with DatasetReader(tmp_path / "x") as reader:
        with pytest.raises(RecordError, match=rf"key\.bag: record 1 \(at byte {len(blob)}\): not of type ") as caught:
            reader[1]
        assert (caught.value.record, caught.value.path) == (1, str(tmp_path / "x" / "key.bag"))
        assert reader[1, ["good"]] == {"good": b"fine"}
    assert time.process_time() - begin < 1


def test_bombs_and_claims_take_little_memory() -> None:
    program = """
import resource, sys
import numpy as np, msgpack, PIL.Image
from pathlib import Path
from fffs.granular import decoders
for name in ("png", "msgpack"):
    try: decoders[name](b"")
    except ValueError: pass
status = Path("/proc/self/status").read_text().splitlines()
size = next(int(line.split()[1]) << 10 for line in status if "VmSize" in line)
resource.setrlimit(resource.RLIMIT_AS, (size + (256 << 20),) * 2)
for kind, blob in msgpack.unpackb(sys.stdin.buffer.read()):
    name, _, arguments = kind.rstrip(")").partition("(")
    try:
        decoders[name](blob, *(arguments.split(",") if arguments else ()))
    except ValueError:
        continue
    print("decoded", kind)
print("done")
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        input=msgpack.packb(BAD_BLOBS),
        capture_output=True,
        check=False,
    )
    assert (done.stdout, done.stderr[-2000:]) == (b"done\n", b"")


def test_an_image_that_would_be_too_large_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codecs, "LARGEST_IMAGE", 4 * 4 * 3 - 1)
    with pytest.raises(ValueError, match="an image of 4 by 4 pixels"):
        decoders["png"](PNG)


STRUCTURES = (
    [{"a": [k, -k, 1.5, None, True, "x" * (k % 300), b"y" * (k % 70_000)]} for k in range(0, 80_000, 399)],
    list(range(-40_000, 100_000, 7)),
    {str(k): k for k in range(70_000)},
    [[[[]]]] * 9000,
    "x" * 70_000,
    [2**63, -(2**63), 2**32, -(2**31), 2**16, -(2**15)] * 5000,
    [[k] * (k % 20) for k in range(4000)],
    [],
    {},
    0,
)


def test_structures_that_are_good_are_unpacked() -> None:
    for value in STRUCTURES:
        assert bounded_msgpack.unpack(msgpack.packb(value)) == value
    extended = msgpack.packb([msgpack.ExtType(5, b"x" * k) for k in (1, 2, 3, 4, 8, 16, 300, 70_000)])
    unpacked = bounded_msgpack.unpack(extended)
    assert [item.data for item in unpacked] == [b"x" * k for k in (1, 2, 3, 4, 8, 16, 300, 70_000)]


def random_structure(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(9 if depth < 5 else 6)
    size = rng.choice([0, 1, 2, 3, 17, 40])
    if kind < 6:
        whole = rng.choice([1, -1]) * rng.getrandbits(rng.randrange(64)) >> 1
        return [None, rng.random() < 0.5, whole, rng.random(), "\xe4" * rng.choice([size, 300]), rng.randbytes(size)][
            kind
        ]
    if kind < 8:
        return [random_structure(rng, depth + 1) for _ in range(size)]
    return {rng.choice([str, str.encode])(f"{k}"): random_structure(rng, depth + 1) for k in range(size)}


def test_random_structures_are_unpacked_and_no_part_of_them_is() -> None:
    rng = random.Random(1)
    for _ in range(300):
        value = random_structure(rng)
        blob = msgpack.packb(value)
        assert bounded_msgpack.unpack(blob) == value
        bounded_msgpack.check(blob + b"behind it")
        for end in {*range(min(len(blob), 100)), *(rng.randrange(len(blob)) for _ in range(100))}:
            with pytest.raises(ValueError, match=r"it is truncated|it claims more values"):
                bounded_msgpack.check(blob[:end])


def test_the_check_of_msgpack_finds_what_msgpack_finds() -> None:
    """For each first byte, and for random bytes of which many are heads of containers."""
    rng = random.Random(2)
    heads = bytes([*range(0x80, 0x84), *range(0x90, 0x94), *range(0xA0, 0xA3), *range(0xC0, 0xE0)])
    blobs = [bytes([code]) + bytes(rest) for code in range(256) for rest in range(40)]
    blobs += [
        bytes(rng.choice(heads) if rng.random() < 0.4 else rng.randrange(3) for _ in range(20)) for _ in range(9000)
    ]
    results = set()
    for blob in blobs:
        unpacker = msgpack.Unpacker()
        unpacker.feed(blob)
        try:
            unpacker.skip()
            expected = None
        except msgpack.FormatError:
            expected = "no value has"
        except msgpack.OutOfData:
            expected = "truncated"
        try:
            bounded_msgpack.check(blob)
            found = None
        except ValueError as error:
            found = str(error)
        # An impossible number of values is found before what is wrong with these.
        assert (found is None) == (expected is None), blob
        assert found is None or "claims" in found or str(expected) in found, blob
        results.add(expected)
    assert len(results) == 3


@pytest.mark.parametrize("unit", ["90", "80", "9100", "8100c0", "81a0c0", "d40500", "91" * 200 + "90"])
def test_many_small_containers_are_refused(unit: str) -> None:
    one = bytes.fromhex(unit)
    count = (16 << 20) // len(one)
    blob = b"\xdd" + struct.pack(">I", count) + one * count
    begin = time.process_time()
    with pytest.raises(ValueError, match="would take too much memory"):
        bounded_msgpack.unpack(blob)
    assert time.process_time() - begin < 1


@pytest.mark.parametrize(
    "value", [3, 300, 1.5, "ab", b"abc", [1, 2], {"x": 1, "y": 2}, {"id": 5, "ts": 7}, [[1, 2], [3, 4]]]
)
def test_ordinary_values_are_never_too_many(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_msgpack, "MEMORY", 0)
    bounded_msgpack.check(msgpack.packb([value] * 10_000))


def test_structures_of_few_items_are_limited_only_in_millions() -> None:
    for value in ([], [1], {"x": 1}):
        assert bounded_msgpack.unpack(msgpack.packb([value] * 300_000))[-1] == value


# ---------------------------------------------------------------- damaged folders

SPEC_V1 = {"k": "int(4)", "s": "utf8[]"}
SPEC_V3 = {"k": "i64", "s": "utf8"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Copies of golden data sets that may be damaged."""
    for name, version in (("v1", "granular-0.6.0/datasets/exact"), ("v3", "granular-0.24.2/datasets/sharded")):
        shutil.copytree(golden.FOLDER / version, tmp_path / name)
    shutil.copytree(golden.FOLDER / "granular-0.21.2/datasets/sharded/000001", tmp_path / "v2")
    for path in tmp_path.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return tmp_path


def rewrite(path: Path, records: list[bytes]) -> None:
    """Write a Bag in layout v1 with other records."""
    path.unlink()
    with BagWriter(path) as writer:
        for record in records:
            writer.append(record)


BAD_REFS = {
    "empty": b"",
    "no array": b"\x05",
    "too few": bytes.fromhex("9101"),
    "too many": bytes.fromhex("93019200010a"),
    "claims 2**32": bytes.fromhex("ddffffffff"),
    "cut": bytes.fromhex("92cd01"),
    "cut in a sequence": bytes.fromhex("92019200"),
    "bytes behind": bytes.fromhex("920192000100"),
    "negative": bytes.fromhex("92ff920001"),
    "text": bytes.fromhex("92a131920001"),
    "a sequence for a scalar": bytes.fromhex("929200019200"),
    "a scalar for a sequence": bytes.fromhex("920101"),
    "a sequence of three": bytes.fromhex("920193000101"),
    "blob out of range": bytes.fromhex("9203920001"),
    "blob 2**64 - 1": bytes.fromhex("92cfffffffffffffffff920001"),
    "sequence out of range": bytes.fromhex("9201920202"),
    "sequence of 2**63": bytes.fromhex("92019200cf8000000000000000"),
    "sequence from 2**64 - 1": bytes.fromhex("920192cfffffffffffffffff01"),
    "nested": b"\x92\x01" + b"\x92" * 5000,
}


@pytest.mark.parametrize("name", BAD_REFS)
def test_refs_that_cannot_be_fail_their_row_alone(folder: Path, name: str) -> None:
    path = folder / "v1" / "000000"
    good = bytes.fromhex("9201920001")
    rewrite(path / "refs.bag", [good, BAD_REFS[name], good])
    begin = time.process_time()
    with DatasetReader(path) as reader:
        assert reader[0] == reader[2] == {"k": 7, "s": ["green"]}
        for read in (lambda: reader[1], lambda: reader[1, ["s", "k"]], lambda: reader[:], lambda: reader.read([2, 1])):
            with pytest.raises(RecordError, match=r"refs\.bag: record 1 \(at byte 5\): ") as caught:
                read()
            assert caught.value.record == 1
    assert time.process_time() - begin < 1


def test_refs_are_packed_as_msgpack_packs_them() -> None:
    for row in (
        [5],
        [0, (3, 2), (0, 0), 127, 128, 255, 256, 65535, 65536, 2**32, 2**64 - 1],
        list(range(70_000)),
        [1] * 16,
    ):
        plain = [ref if isinstance(ref, int) else list(ref) if ref[1] else [] for ref in row]
        assert refs.encode(row) == msgpack.packb(plain)
        assert refs.decode(refs.encode(row), [not isinstance(ref, int) for ref in row]) == row


@pytest.mark.parametrize(
    ("version", "name"),
    [
        *itertools.product(["v1/000000", "v2", "v3/000000"], ["spec.json", "k.bag", "s.bag"]),
        *(("v1/000000", "refs.bag"), ("v2", "refs.bag"), ("v3/000000", "k.idx"), ("v3/000000", "s.idx")),
    ],
)
def test_a_file_that_is_missing_is_said_at_once(folder: Path, version: str, name: str) -> None:
    path = folder / version
    (path / name).unlink()
    with pytest.raises((SourceNotFoundError, MetadataError), match=version):
        DatasetReader(path)


@pytest.mark.parametrize("version", ["v1/000000", "v2", "v3/000000"])
def test_every_cut_of_every_file_is_refused_or_leaves_rows_as_they_were(folder: Path, version: str) -> None:
    path = folder / version
    with DatasetReader(path) as reader:
        whole = list(reader)
    for file in sorted(path.iterdir()):
        data = file.read_bytes()
        for size in range(len(data)):
            file.write_bytes(data[:size])
            try:
                with DatasetReader(path) as reader:
                    for k in range(len(reader)):
                        try:
                            assert reader[k] == whole[k], (file.name, size)
                        except TruncatedError:
                            assert file.suffix == ".bag" and version.startswith("v3")
            except (MetadataError, FffsError):
                continue
        file.write_bytes(data)


def test_columns_of_unlike_length_are_refused_in_v3(folder: Path) -> None:
    os.truncate(folder / "v3" / "000000" / "s.idx", 8)
    with pytest.raises(MetadataError, match=r"s\.bag: it has 1 records, but k\.bag has 2"):
        DatasetReader(folder / "v3" / "000000")
    with pytest.raises(MetadataError):
        ShardedDatasetReader(folder / "v3")


def test_a_column_that_is_short_fails_only_the_rows_it_misses(folder: Path) -> None:
    path = folder / "v1" / "000000"
    rewrite(path / "k.bag", [b"\0\0\0\0", b"\x07\0\0\0"])
    with DatasetReader(path) as reader:
        assert reader[1] == {"k": 7, "s": ["green"]}
        with pytest.raises(RecordError, match=r"refs\.bag: record 2 .* 'k' has the blobs 2 to 2, but only 2 exist"):
            reader[2]


def test_refs_without_rows_beside_full_columns_are_refused(folder: Path) -> None:
    rewrite(folder / "v1" / "000000" / "refs.bag", [])
    (folder / "v2" / "refs.bag").write_bytes(b"")
    for path in (folder / "v1" / "000000", folder / "v2"):
        with pytest.raises(MetadataError, match=r"refs\.bag has no rows"):
            DatasetReader(path)


SPECS = {
    "up": '{"../x": "utf8"}',
    "absolute": '{"/etc/x": "utf8"}',
    "deep": '{"a/b": "utf8"}',
    "slash": '{"/": "utf8"}',
    "dot": '{".": "utf8"}',
    "dots": '{"..": "utf8"}',
    "empty": '{"": "utf8"}',
    "NUL": '{"a\\u0000b": "utf8"}',
    "surrogate": '{"\\ud800": "utf8"}',
    "long": json.dumps({"x" * 252: "utf8"}),
    "long in bytes": json.dumps({"ü" * 126: "utf8"}),
    "twice": '{"k": "utf8", "k": "i64"}',
    "no text": '{"k": 5}',
    "no type": '{"k": ""}',
    "null": '{"k": null}',
    "list": '["k"]',
    "nothing": "",
    "no keys": "{}",
    "number": "5",
    "cut": '{"k": "ut',
    "NaN": "NaN",
    "large number": '{"k": 1' + "0" * 100_000 + "}",
    "nested": "[" * 100_000,
    "nested objects": '{"a":' * 100_000,
    "large": '{"k": "' + "x" * 2 * MIB + '"}',
    "latin-1": '{"k\xff": "utf8"}',
}


@pytest.mark.parametrize("name", SPECS)
def test_a_hostile_spec_is_refused_and_leads_nowhere(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "spec.json").write_bytes(SPECS[name].encode("latin-1"))
    for beside in ("x.bag", "x.idx"):
        (tmp_path / beside).touch()
    touched: list[str] = []
    original = os.open
    monkeypatch.setattr(os, "open", lambda path, *a, **k: (touched.append(str(path)), original(path, *a, **k))[1])
    begin = time.process_time()
    with pytest.raises(MetadataError, match=r"spec\.json: "):
        DatasetReader(tmp_path / "x")
    assert time.process_time() - begin < 1
    assert touched == [str(tmp_path / "x" / "spec.json")]
    if name not in ("nothing", "cut", "NaN", "latin-1", "nested", "nested objects", "large number", "large", "twice"):
        with pytest.raises(UsageError, match="the spec given"):
            DatasetWriter(tmp_path / "y", json.loads(SPECS[name]))
        assert sorted(file.name for file in tmp_path.iterdir()) == ["x", "x.bag", "x.idx"]


def test_what_is_no_file_in_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(SourceNotFoundError):
        DatasetReader(tmp_path / "x")
    with pytest.raises(SourceNotFoundError):
        DatasetReader(tmp_path / "nothing", spec={"k": "utf8"})
    (tmp_path / "x" / "spec.json").write_text('{"k": "utf8"}')
    os.mkfifo(tmp_path / "x" / "k.bag")
    (tmp_path / "x" / "k.idx").touch()
    with pytest.raises(UsageError, match="not a regular file"):
        DatasetReader(tmp_path / "x")
    (tmp_path / "x" / "k.bag").unlink()
    os.mkdir(tmp_path / "x" / "k.bag")
    with pytest.raises((UsageError, ReadError)):
        DatasetReader(tmp_path / "x")


def test_a_spec_that_is_given_must_not_contradict_the_folders(folder: Path) -> None:
    assert len(DatasetReader(folder / "v2", spec={"s": "utf8[]", "k": "i64"})) == 2
    with pytest.raises(UsageError, match=r"its spec\.json differs from the spec given"):
        DatasetReader(folder / "v2", spec={"k": "i64"})


# ---------------------------------------------------------------- shards


def test_workers_share_out_the_shards() -> None:
    path = golden.FOLDER / "granular-0.6.0/datasets/two-writers"
    with ShardedDatasetReader(path) as everything:
        rows = list(everything)
    for workers in range(1, 8):
        found = []
        for worker in range(workers):
            with ShardedDatasetReader(path, shard_start=worker, shard_step=workers) as reader:
                assert reader.shards == len(range(worker, 5, workers))
                found += list(reader)
        assert sorted(row["k"] for row in found) == sorted(row["k"] for row in rows)
    with ShardedDatasetReader(path, None, 1, 3) as reader:
        assert (reader.shards, list(reader)) == (2, rows[2:6])
    with ShardedDatasetReader(path, decoders, shardstart=3, shardstep=1, shardstop=9) as reader:
        assert list(reader) == rows[6:]
        assert reader[[2, 0], {"s": True}] == {"s": [rows[8]["s"], rows[6]["s"]]}


@pytest.mark.parametrize("arguments", [{"shard_start": -1}, {"shard_step": -1}, {"shard_stop": -2}, {"shards": 2}])
def test_a_share_of_shards_that_cannot_be_is_an_error(folder: Path, arguments: dict[str, int]) -> None:
    with pytest.raises((UsageError, TypeError)):
        ShardedDatasetReader(folder / "v1", **arguments)


def rename(folder: Path, old: str, new: str) -> None:
    os.rename(folder / "v3" / old, folder / "v3" / new)


@pytest.mark.parametrize(
    ("old", "new", "missing"),
    [
        ("000001", "elsewhere", "000001"),
        ("000003", "000004", "000003"),
        ("000000", "1000000", "000000"),
        ("000002", "2", "000000"),
        ("000002", "0000002", "000002"),
        ("000003", "9" * 200, "000003"),
    ],
)
def test_a_missing_or_extra_shard_is_said(folder: Path, old: str, new: str, missing: str) -> None:
    rename(folder, old, new)
    with pytest.raises(MetadataError, match=f"shard {missing} is missing"):
        ShardedDatasetReader(folder / "v3")
    with pytest.raises(MetadataError):
        ShardedDatasetReader(folder / "v3", shard_start=0, shard_stop=1)


@pytest.mark.parametrize("layout", ["v1", "v3"])
def test_gaps_that_writers_with_unequal_work_left_are_closed_by_renaming(tmp_path: Path, layout: str) -> None:
    for first, rows in ((0, 2), (1, 3)):
        parallel = {"shard_length": 1, "shard_start": first, "shard_step": 2}
        with ShardedDatasetWriter(tmp_path / "set", {"k": "u64"}, layout=layout, **parallel) as writer:
            for row in range(rows):
                writer.append({"k": row})
    with pytest.raises(MetadataError, match=r"shard 000004 is missing, but 000005 exists; .*rename the folders"):
        ShardedDatasetReader(tmp_path / "set")
    (tmp_path / "set/000005").rename(tmp_path / "set/000004")
    with ShardedDatasetReader(tmp_path / "set") as reader:
        assert [row["k"] for row in reader] == [0, 0, 1, 1, 2]


def test_shards_that_do_not_belong_together_are_refused(folder: Path) -> None:
    shutil.rmtree(folder / "v3" / "000003")
    shutil.copytree(folder / "v1" / "000000", folder / "v3" / "000003")
    with pytest.raises(MetadataError, match="differs from the spec of"):
        ShardedDatasetReader(folder / "v3")
    for name, layout in (("000000", "v1"), ("000001", "v3")):
        with DatasetWriter(folder / "mixed" / name, {"k": "i64"}, layout=layout) as writer:
            writer.append({"k": 5})
    with pytest.raises(MetadataError, match="some shards are of granular before"):
        ShardedDatasetReader(folder / "mixed")


def test_the_other_reader_is_named_when_it_is_the_right_one(folder: Path) -> None:
    with pytest.raises(UsageError, match="open it with ShardedDatasetReader"):
        DatasetReader(folder / "v1")
    with pytest.raises(UsageError, match="open it with DatasetReader"):
        ShardedDatasetReader(folder / "v2")
    with pytest.raises(MetadataError, match="no shards"):
        ShardedDatasetReader(folder)
    with pytest.raises(SourceNotFoundError):
        ShardedDatasetReader(folder / "nothing")


def test_too_many_open_files_are_explained(folder: Path) -> None:
    program = """
import resource, sys
from fffs.granular import ShardedDatasetReader
resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))
try: ShardedDatasetReader(sys.argv[1])
except OSError as error: print(error.errno, error)
"""
    done = subprocess.run([sys.executable, "-c", program, folder / "v3"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("24 ") and "raise ulimit -n or read fewer shards" in done.stdout


# ---------------------------------------------------------------- readers


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large")
    with ShardedDatasetWriter(path, {"n": "int", "t": "utf8[]"}, shard_length=70) as writer:
        for k in range(500):
            writer.append(row_of(k))
    return path


def row_of(k: int) -> dict[str, Any]:
    return {"n": k * k, "t": [f"{k}/{j}" * (k % 9) for j in range(k % 5)]}


def test_threads_and_children_of_fork_read_the_right_rows(large: Path) -> None:
    def read_at_random(seed: int) -> list[object]:
        chance = random.Random(seed)
        orders = [[chance.randrange(500) for _ in range(chance.randrange(1, 20))] for _ in range(60)]
        return [order for order in orders if reader.read(order) != [row_of(k) for k in order]]

    with ShardedDatasetReader(large) as reader:
        assert find_problems(read_at_random) == []


def test_copies_open_the_files_anew_and_a_closed_reader_says_so(large: Path) -> None:
    reader = ShardedDatasetReader(large, shard_start=2, shard_step=3)
    again = pickle.loads(pickle.dumps(reader))
    assert again[5] == reader[5] and len(again) == len(reader)
    single = DatasetReader(golden.FOLDER / "granular-0.6.0/datasets/no-spec", spec=SPEC_V1)
    assert pickle.loads(pickle.dumps(single))[0] == {"k": 0, "s": []}
    for closed in (reader, single):
        closed.close()
        closed.close()
        with pytest.raises(ClosedError, match="has been closed"):
            closed[0]
    assert again[0] == row_of(140)


def test_indices_that_are_none_are_errors_and_iteration_ends(large: Path) -> None:
    with ShardedDatasetReader(large) as reader:
        assert sum(1 for _ in reader) == 500
        assert reader[-1] == row_of(499)
        for wrong in (500, -501, 2**64):
            with pytest.raises(IndexError):
                reader[wrong]
        for index in ("1", 1.5, None, (1, None, None)):
            with pytest.raises(UsageError):
                reader[index]
        assert reader[range(495, 600), ["n"]] == {"n": [k * k for k in range(495, 500)]}
        assert reader[-3:-1, ["n"]] == {"n": [497**2, 498**2]}


# ---------------------------------------------------------------- writers


def tree(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_data_set_in_v1_appears_complete_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with pytest.raises(KeyError), DatasetWriter(path, SPEC_V1) as writer:
        writer.append({"k": 1, "s": ["a"]})
        writer.flush()
        raise KeyError
    assert list(tmp_path.iterdir()) == []
    path.mkdir()
    writer = DatasetWriter(path, SPEC_V1)
    writer.append({"k": 1, "s": ["a"]})
    assert tree(path) == {}
    writer.close()
    writer.close()
    assert DatasetReader(path)[0] == {"k": 1, "s": ["a"]}
    assert [file.name for file in tmp_path.iterdir()] == ["x"]
    with pytest.raises(WriteError, match="needs a new or empty folder"):
        DatasetWriter(path, SPEC_V1)
    for call in (lambda: writer.append({"k": 1, "s": []}), writer.flush):
        with pytest.raises(WriterError):
            call()


def test_a_killed_writer_leaves_v3_as_it_was_flushed_and_no_v1(tmp_path: Path) -> None:
    program = """
import os, sys
from fffs.granular import DatasetWriter
spec = {"k": "i64", "s": "utf8"}
writers = [DatasetWriter(sys.argv[1], spec, layout="v3"), DatasetWriter(sys.argv[2], spec)]
for writer in writers:
    for k in range(3):
        writer.append({"k": k, "s": "x" * k}, flush=True)
    for k in range(3, 6):
        writer.append({"k": k, "s": "x" * 700_000})
os._exit(9)
"""
    done = subprocess.run([sys.executable, "-c", program, tmp_path / "a", tmp_path / "b"], check=False)
    assert done.returncode == 9
    expected = {"k": [0, 1, 2], "s": ["", "x", "xx"]}
    assert DatasetReader(tmp_path / "a")[:] == expected
    with pytest.raises(FffsError):
        DatasetReader(tmp_path / "b")
    with pytest.warns(TornTailWarning), DatasetWriter(tmp_path / "a", SPEC_V3, layout="v3") as writer:
        assert writer.append({"k": 9, "s": "new"}) == 3
    assert DatasetReader(tmp_path / "a")[3] == {"k": 9, "s": "new"}
    with DatasetWriter(tmp_path / "b", SPEC_V3) as writer:
        writer.append({"k": 1, "s": ""})
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize("name", ["not-closed", "reopened"])
def test_a_data_set_of_granular_is_appended_to(tmp_path: Path, name: str) -> None:
    shutil.copytree(golden.FOLDER / "granular-0.24.2/datasets" / name, tmp_path / "x")
    before = DatasetReader(tmp_path / "x")[:]
    with DatasetWriter(tmp_path / "x", SPEC_V3, layout="v3") as writer:
        for k in range(3):
            writer.append({"k": k, "s": str(k)})
    assert DatasetReader(tmp_path / "x")[:] == {"k": before["k"] + [0, 1, 2], "s": before["s"] + ["0", "1", "2"]}


@pytest.mark.parametrize("calls", range(1, 7))
@pytest.mark.parametrize("before", [0, 2])
def test_rows_that_are_not_in_all_columns_are_cut_off_before_more_is_appended(
    tmp_path: Path, before: int, calls: int
) -> None:
    """A writer is killed at each of the steps of a flush of 3,000 rows, also of its first one."""
    program = """
import os, sys
sys.path.insert(0, sys.argv[4])
from fffs.granular import DatasetWriter
from inside import AppendedBag
calls = int(sys.argv[3])
def counted(step):
    def call(bag):
        global calls
        calls -= bool(armed)
        if armed and calls == 0:
            os._exit(9)
        step(bag)
    return call
armed = False
for name in ("write_records", "write_table", "keep"):
    setattr(AppendedBag, name, counted(getattr(AppendedBag, name)))
writer = DatasetWriter(sys.argv[1], {"k": "i64", "s": "utf8"}, layout="v3")
for k in range(int(sys.argv[2])):
    writer.append({"k": k, "s": str(k)}, flush=True)
armed = True
for k in range(3000):
    writer.append({"k": -1, "s": "torn"})
writer.close()
"""
    path, tests = tmp_path / "x", Path(__file__).parent
    arguments = [str(part) for part in (path, before, calls, tests)]
    assert subprocess.run([sys.executable, "-c", program, *arguments], check=False).returncode == 9
    kept = 3000 + before if calls > 4 else before
    if calls == 4:  # one of two tables is written
        with pytest.raises(MetadataError, match=r"or was killed \(open and close DatasetWriter with layout='v3'"):
            DatasetReader(path)
    with pytest.warns(TornTailWarning) if calls in (2, 3, 4) else contextlib.nullcontext():
        again = DatasetWriter(path, SPEC_V3, layout="v3")
    assert again.append({"k": 5, "s": "five"}) == kept
    again.close()
    with DatasetReader(path) as reader:
        assert reader[[*range(before), kept]] == {
            "k": [*range(before), 5],
            "s": [*map(str, range(before)), "five"],
        }
    assert sorted(file.name for file in path.iterdir()) == ["k.bag", "k.idx", "s.bag", "s.idx", "spec.json"]


@pytest.mark.parametrize("name", ["k.bag", "s.bag"])
def test_columns_that_differ_for_another_reason_than_a_killed_writer_are_cut_only_on_request(
    folder: Path, name: str
) -> None:
    path = folder / "v3" / "000000"
    with BagWriter(path / name, "v3") as column:
        column.append(b"12345678")
    with open(path / "s.idx", "ab") as torn:
        torn.write(b"\1\2\3")
    before = tree(folder)
    with pytest.raises(MetadataError, match=r"but k\.bag has .; a file is truncated or an old copy"):
        DatasetReader(path)
    with pytest.raises(MetadataError, match=r"it has 2 records, but .\.bag has 3, .* cut_to=2\)"):
        DatasetWriter(path, SPEC_V3, layout="v3")
    for rows in (3, -1):
        with pytest.raises(UsageError, match=f"cannot be cut to {rows}"):
            DatasetWriter(path, SPEC_V3, layout="v3", cut_to=rows)
    with pytest.raises(UsageError, match="cut_to=, must be integers, not bool"):
        DatasetWriter(path, SPEC_V3, layout="v3", cut_to=True)
    with pytest.raises(UsageError, match="needs layout='v3'"):
        DatasetWriter(folder / "new", SPEC_V3, cut_to=0)
    assert tree(folder) == before
    with DatasetWriter(path, SPEC_V3, layout="v3", cut_to=1) as writer:
        writer.append({"k": 5, "s": "five"})
    assert DatasetReader(path)[:] == {"k": [0, 5], "s": ["", "five"]}


def test_truncated_columns_are_cut_on_request(tmp_path: Path) -> None:
    path = tmp_path / "set"
    with DatasetWriter(path, {"k": "u64", "s": "bytes"}, layout="v3") as writer:
        for k in range(5):
            writer.append({"k": k, "s": b"x"})
    os.truncate(path / "k.bag", 20)
    before = tree(path)
    with pytest.raises(MetadataError, match="cannot append: it ends at byte 20"):
        DatasetWriter(path, {"k": "u64", "s": "bytes"}, layout="v3")
    with pytest.raises(UsageError, match=r"k\.bag: it has 2 records and cannot be cut to 3"):
        DatasetWriter(path, {"k": "u64", "s": "bytes"}, layout="v3", cut_to=3)
    assert tree(path) == before
    with DatasetWriter(path, {"k": "u64", "s": "bytes"}, layout="v3", cut_to=2) as writer:
        writer.append({"k": 7, "s": b"y"})
    assert DatasetReader(path)[:] == {"k": [0, 1, 7], "s": [b"x", b"x", b"y"]}


def test_rows_are_flushed_before_they_are_too_many_to_lose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fffs.granular.grown_columns.UNFLUSHED", 100)
    with pytest.raises(ZeroDivisionError), DatasetWriter(tmp_path / "x", {"k": "u64"}, layout="v3") as writer:
        for k in range(250):
            writer.append({"k": k})
        raise ZeroDivisionError
    with DatasetReader(tmp_path / "x") as reader:
        assert [row["k"] for row in reader] == list(range(200))


def test_where_no_marker_can_be_made_or_removed_rows_are_appended(tmp_path: Path) -> None:
    with as_nobody(tmp_path):
        with DatasetWriter("x", {"k": "u64"}, layout="v3") as writer:
            writer.append({"k": 0})
        os.chmod("x", 0o555)
        with DatasetWriter("x", {"k": "u64"}, layout="v3") as writer:
            writer.append({"k": 1})
        os.chmod("x", 0o755)
        Path("x/unfinished.fffs").write_bytes(b"")
        os.chmod("x/unfinished.fffs", 0)
        with DatasetWriter("x", {"k": "u64"}, layout="v3") as writer:
            writer.append({"k": 2})
        assert not os.path.exists("x/unfinished.fffs")
        with DatasetReader("x") as reader:
            assert [row["k"] for row in reader] == [0, 1, 2]


def test_a_marker_can_be_used_by_all_who_may_append(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "x", {"k": "u64"}, layout="v3"):
        pass
    (tmp_path / "x" / "k.bag").chmod(0o664)
    umask = os.umask(0o077)
    try:
        with DatasetWriter(tmp_path / "x", {"k": "u64"}, layout="v3"):
            assert (tmp_path / "x" / "unfinished.fffs").stat().st_mode & 0o777 == 0o664
    finally:
        os.umask(umask)


def test_a_marker_of_other_rows_does_not_let_columns_be_cut(folder: Path) -> None:
    """A copy of a column is restored after a writer was killed, or another program appended."""
    path = folder / "v3" / "000000"
    for before, after, content in ((0, 1, b""), (3, 9, b""), (2, 2, b""), (0, 9, b"x")):
        marker = struct.pack("<8s2Q", b"fffsROWS", before, after)
        (path / "unfinished.fffs").write_bytes(content or marker)
        with BagWriter(path / "k.bag", "v3") as column:
            column.append(b"12345678")
        unchanged = tree(folder)
        with pytest.raises(MetadataError, match="and no killed writer of fffs left that"):
            DatasetWriter(path, SPEC_V3, layout="v3")
        assert tree(folder) == unchanged
        DatasetWriter(path, SPEC_V3, layout="v3", cut_to=2).close()
        assert not (path / "unfinished.fffs").exists()


def test_a_column_that_is_restored_after_a_writer_was_killed_costs_no_row(tmp_path: Path) -> None:
    path = tmp_path / "x"
    if (child := os.fork()) == 0:
        writer = DatasetWriter(path, SPEC_V3, layout="v3")
        for k in range(9):
            writer.append({"k": k, "s": ""})
        writer.flush()
        os._exit(0)
    os.waitpid(child, 0)
    os.truncate(path / "k.idx", 0)
    os.truncate(path / "k.bag", 0)
    before = tree(path)
    assert "unfinished.fffs" in before
    with pytest.raises(MetadataError, match=r"k\.bag: it has 0 records, but s\.bag has 9"):
        DatasetWriter(path, SPEC_V3, layout="v3")
    assert tree(path) == before


def test_a_column_that_is_missing_is_an_error_and_costs_no_row(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with DatasetWriter(path, SPEC_V3, layout="v3") as writer:
        for k in range(1000):
            writer.append({"k": k, "s": ""})
    for name in ("s.bag", "s.idx"):
        (path / name).unlink()
    before = tree(path)
    with pytest.raises(MetadataError, match=r"s\.bag: this column is missing, but k\.bag has records; copy it"):
        DatasetWriter(path, SPEC_V3, layout="v3")
    (path / "spec.json").unlink()
    with pytest.raises(MetadataError, match=r"s\.bag: this column is missing"):
        DatasetWriter(path, SPEC_V3, layout="v3")
    assert {"spec.json": before["spec.json"], **tree(path)} == before
    with DatasetWriter(path, {"k": "i64"}, layout="v3") as writer:
        assert len(writer) == 1000


def test_bytes_behind_the_rows_are_not_cut_off_without_a_killed_writer(tmp_path: Path) -> None:
    """Tables of an older copy are not as long as the records."""
    path = tmp_path / "x"
    with DatasetWriter(path, SPEC_V3, layout="v3") as writer:
        for k in range(9):
            writer.append({"k": k, "s": str(k)}, flush=True)
    for name in ("k.idx", "s.idx"):
        os.truncate(path / name, 16)
    before = tree(path)
    with pytest.raises(MetadataError, match=r"k\.bag: 56 bytes follow the 2 records"):
        DatasetWriter(path, SPEC_V3, layout="v3")
    assert tree(path) == before


def test_columns_that_were_lost_are_not_taken_for_torn_ones(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "x", SPEC_V3, layout="v3") as writer:
        for k in range(1100):
            writer.append({"k": k, "s": ""})
    os.truncate(tmp_path / "x" / "k.bag", 0)
    os.truncate(tmp_path / "x" / "k.idx", 0)
    before = tree(tmp_path)
    with pytest.raises(MetadataError, match=r"k\.bag: it has 0 records, but s\.bag has 1100"):
        DatasetWriter(tmp_path / "x", SPEC_V3, layout="v3")
    (tmp_path / "x" / "k.idx").write_bytes(struct.pack("<2Q", 0, 8))
    with pytest.raises(MetadataError, match="it was truncated"):
        DatasetWriter(tmp_path / "x", SPEC_V3, layout="v3")
    assert {**before, "x/k.idx": struct.pack("<2Q", 0, 8)} == tree(tmp_path)


def test_a_row_that_cannot_be_encoded_leaves_no_trace(tmp_path: Path) -> None:
    for layout, spec in (("v1", {"a": "utf8", "b": "i64[]"}), ("v3", {"a": "utf8", "b": "i64"})):
        good: Mapping[str, Any] = {"a": "x", "b": [1, 2] if layout == "v1" else 1}
        with DatasetWriter(tmp_path / layout, spec, layout=layout) as writer:
            writer.append(good)
            for bad in ({"a": "y", "b": [1, "z"]}, {"a": "y"}, {"a": "y", "b": [], "c": 1}, {"a": 5, "b": []}):
                with pytest.raises((UsageError, AttributeError, ValueError)):
                    writer.append(bad)
            writer.append(good)
        assert DatasetReader(tmp_path / layout).read([0, 1]) == [good, good]
    with (
        DatasetWriter(tmp_path / "s", {"a": "utf8[]"}) as writer,
        pytest.raises(UsageError, match="give a list, not str"),
    ):
        writer.append({"a": "text"})


@pytest.mark.parametrize(("layout", "kind", "blobs"), [("v1", "utf8[]", b"x"), ("v1", "utf8", []), ("v3", "utf8", [])])
def test_blobs_that_are_not_as_the_spec_says_are_not_written(
    tmp_path: Path, layout: str, kind: str, blobs: Any
) -> None:
    with DatasetWriter(tmp_path / "x", {"a": kind}, layout=layout) as writer:
        with pytest.raises(UsageError, match=r"'a' is (a|not a) sequence"):
            writer.append_blobs([memoryview(blobs) if isinstance(blobs, bytes) else blobs])
        assert len(writer) == 0


@pytest.mark.parametrize(
    ("spec", "layout"),
    [
        ({"refs": "utf8"}, "v1"),
        ({"a": "utf8[]"}, "v3"),
        ({"A": "utf8"}, "v3"),
        ({"a": "UTF8"}, "v1"),
        ({"a": "utf8[][]"}, "v1"),
        ({"a": "int(8"}, "v1"),
        ({"a": "1x"}, "v3"),
        ({}, "v1"),
        ({"a": "utf8"}, "v2"),
        ({5: "utf8"}, "v1"),
    ],
)
def test_a_spec_that_no_granular_reads_is_not_written(tmp_path: Path, spec: dict[str, str], layout: str) -> None:
    with pytest.raises(UsageError):
        DatasetWriter(tmp_path / "x", spec, layout=layout)
    assert list(tmp_path.iterdir()) == []


def test_names_that_are_allowed_are_written_and_read(tmp_path: Path) -> None:
    for layout, spec in (("v1", {"Größe": "utf8", "a b": "utf8", "-": "utf8"}), ("v3", {"refs": "utf8", "_x": "utf8"})):
        row = dict.fromkeys(spec, "value")
        with DatasetWriter(tmp_path / layout, spec, layout=layout) as writer:
            writer.append(row)
        assert DatasetReader(tmp_path / layout)[0] == row


def test_nothing_is_appended_to_another_data_set(folder: Path) -> None:
    before = tree(folder)
    with pytest.raises(UsageError, match="a data set with another spec"):
        DatasetWriter(folder / "v3" / "000000", {"k": "i64", "x": "utf8"}, layout="v3")
    with pytest.raises(UsageError, match=r"of granular before 0\.22"):
        DatasetWriter(folder / "v2", {"k": "i64"}, layout="v3")
    with (
        DatasetWriter(folder / "v3" / "000001", SPEC_V3, layout="v3"),
        pytest.raises(WriterError, match="another writer"),
    ):
        DatasetWriter(folder / "v3" / "000001", SPEC_V3, layout="v3")
    assert tree(folder) == before


def test_a_sharded_writer_goes_on_where_its_last_shard_ended(tmp_path: Path) -> None:
    rows = [{"k": k, "s": str(k)} for k in range(20)]
    for part in (rows[:3], rows[3:4], rows[4:11], [], rows[11:12], rows[12:]):
        with ShardedDatasetWriter(tmp_path, SPEC_V3, shard_length=4, layout="v3") as writer:
            for row in part:
                writer.append(row)
    with ShardedDatasetReader(tmp_path) as reader:
        assert (list(reader), reader.shards) == (rows, 5)


@pytest.mark.parametrize("there", [False, True])
def test_of_two_writers_that_begin_a_data_set_with_different_specs_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    path, step = tmp_path / "x", "link" if there else "rename"
    if there:
        path.mkdir()
    original = getattr(os, step)

    def late(*arguments: Any, **options: Any) -> None:
        monkeypatch.undo()
        with DatasetWriter(path, SPEC_V3, layout="v3") as other:
            other.append({"k": 1, "s": "one"})
        original(*arguments, **options)

    monkeypatch.setattr(os, step, late)
    with pytest.raises(UsageError, match="a data set with another spec"):
        DatasetWriter(path, {"k": "i64", "x": "utf8"}, layout="v3")
    assert DatasetReader(path)[:] == {"k": [1], "s": ["one"]}
    assert [file.name for file in tmp_path.iterdir()] == ["x"]
    assert sorted(tree(path)) == ["k.bag", "k.idx", "s.bag", "s.idx", "spec.json"]


@pytest.mark.parametrize("killed", [False, True])
def test_a_shard_that_cannot_be_made_leaves_the_others_readable(tmp_path: Path, killed: bool) -> None:
    """Each creation of a file or folder, from one on, fails because the disk is full, or the writer is killed."""
    ends = []
    for allowed in (*range(7), 10, 12, 30):  # 14 creations are those of one shard
        path = tmp_path / str(allowed)
        if (child := os.fork()) == 0:
            with pytest.MonkeyPatch.context() as patch:
                os._exit(write_two_shards(path, patch, allowed, killed))
        ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        with ShardedDatasetReader(path) as reader:
            assert reader[:, ["k"]]["k"] == [0, 1, 2, 3][: len(reader)] and len(reader) in (2, 4)
        with ShardedDatasetWriter(path, SPEC_V3, shard_length=2, layout="v3") as writer:
            writer.append({"k": 9, "s": ""})
        assert ShardedDatasetReader(path)[-1]["k"] == 9
    assert ends[0] == 9 and ends[-1] == 0


def write_two_shards(path: Path, patch: pytest.MonkeyPatch, allowed: int, killed: bool) -> int:
    left, mkdir = 1000, os.mkdir

    def limited(original: Any) -> Any:
        def call(name: Any, flags: int, *arguments: Any, **options: Any) -> Any:
            nonlocal left
            if creates := original is mkdir or flags & os.O_CREAT:
                left -= 1
            if creates and left < 0:
                if killed:
                    os._exit(9)
                raise OSError(28, "No space left on device")
            return original(name, flags, *arguments, **options)

        return call

    patch.setattr(os, "open", limited(os.open))
    patch.setattr(os, "mkdir", limited(os.mkdir))
    try:
        with ShardedDatasetWriter(path, SPEC_V3, shard_length=2, layout="v3") as writer:
            for k in range(4):
                if k == 2:
                    left = allowed
                writer.append({"k": k, "s": ""})
    except WriteError:
        return 9
    return 0


def test_shards_that_were_closed_stay_when_the_writer_fails(tmp_path: Path) -> None:
    with pytest.raises(KeyError), ShardedDatasetWriter(tmp_path, SPEC_V1, shard_length=2) as writer:
        for k in range(5):
            writer.append({"k": k, "s": []})
        raise KeyError
    assert sorted(file.name for file in tmp_path.iterdir()) == ["000000", "000001"]
    assert ShardedDatasetReader(tmp_path)[:, ["k"]] == {"k": [0, 1, 2, 3]}
    again = ShardedDatasetWriter(tmp_path, SPEC_V1)
    with pytest.raises(WriteError, match="needs a new or empty folder"):
        again.append({"k": 0, "s": []})
    with pytest.raises(WriterError):
        again.append({"k": 0, "s": []})


@pytest.mark.parametrize("arguments", [{"shard_size": 0}, {"shard_length": 0}, {"shard_start": -1}, {"shardlength": 1}])
def test_shards_that_cannot_be_are_an_error(tmp_path: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises((UsageError, TypeError)):
        ShardedDatasetWriter(tmp_path / "x", SPEC_V1, **arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_no_data_set_and_no_torn_rows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tree(folder)
    original, left = os.pwritev, 0

    def limited(fd: int, pieces: Any, position: int) -> int:
        nonlocal left
        if left == 0:
            raise OSError(28, "No space left on device")
        left -= 1
        return original(fd, pieces, position)

    for allowed in range(6):
        for path, layout in ((folder / "new", "v1"), (folder / "v3" / "000000", "v3")):
            with monkeypatch.context() as patch, pytest.raises(WriteError, match="No space left"):
                patch.setattr(os, "pwritev", limited)
                left = min(allowed, 3)
                with DatasetWriter(path, SPEC_V3, layout=layout) as writer:
                    writer.append({"k": 5, "s": "x" * 100})
            assert tree(folder) == before


def everything(path: Path) -> Iterator[str]:
    for file in path.rglob("*.py"):
        yield file.read_text()


def test_nothing_unpickles() -> None:
    package = Path(codecs.__file__).parent
    assert not [
        text for text in everything(package) if "pickle" in text.replace("pickled", "") or "allow_pickle" in text
    ]


def test_random_edits_of_small_data_sets_pass_the_fuzz_target() -> None:
    for data in random_edits(fuzz_granular.seeds().values(), 20240702, 600):
        fuzz_granular.one_input(data)


def test_a_png_of_io_is_read_as_pillow_reads_it() -> None:
    out = io.BytesIO()
    Image.fromarray(np.arange(12, dtype=np.uint8).reshape(3, 4)).convert("P").save(out, "png")
    assert decoders["png"](out.getvalue()).shape == (3, 4)


@pytest.mark.parametrize("layout", ["v1", "v3"])
def test_a_shard_has_at_least_one_row_however_small_its_size(layout: str, tmp_path: Path) -> None:
    with ShardedDatasetWriter(tmp_path / "x", {"k": "i64"}, None, 1, layout=layout) as writer:
        for k in range(3):
            writer.append({"k": k})
        assert writer.shards == 3
    with ShardedDatasetReader(tmp_path / "x") as reader:
        assert (len(reader), reader.shards, reader[:]) == (3, 3, {"k": [0, 1, 2]})


@pytest.mark.parametrize("arguments", [(True,), (0, ("k",)), ("1",)])
def test_a_number_of_a_shard_is_an_integer(arguments: tuple[Any, ...], tmp_path: Path) -> None:
    with ShardedDatasetWriter(tmp_path / "x", {"k": "i64"}) as writer:
        writer.append({"k": 1})
    with pytest.raises(UsageError, match="must be integers, not"):
        ShardedDatasetReader(tmp_path / "x", None, *arguments)


@pytest.mark.parametrize("kind", sorted(codecs.decoders))
def test_every_decoder_can_be_pickled(kind: str) -> None:
    assert pickle.loads(pickle.dumps(codecs.decoders[kind])) is not None
