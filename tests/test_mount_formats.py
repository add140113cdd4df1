"""Mounts of TFRecord, OFRecord and Bag files and of granular data sets, stored and decoded."""

from __future__ import annotations

import errno
import functools
import io
import itertools
import os
import shutil
import stat
import struct
import subprocess
import tarfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import granular_golden as granular
import msgpack
import numpy as np
import pytest
import trio
import trio.testing
from frame_files import OFRECORD, TFRECORD, FrameGolden, agrees, path_of, tf_frame
from hypothesis import given
from hypothesis import strategies as st
from inside import (
    CAPACITY,
    MOST_FILES,
    DecodedTreeView,
    Entries,
    FileContent,
    LocalFile,
    NotDecoded,
    Row,
    RowFolder,
    RowsView,
    Shard,
    SourceFile,
    TreeView,
    encode_bytes,
    encode_varint,
    file_name,
    granular_layout,
    keep_checksums,
    load_bag,
    load_records,
    load_shown,
    load_source,
    npy,
    refs,
    refs_table,
    rows,
)
from inside import LARGE_READ as LARGE
from inside import LARGEST_MESSAGE as LARGEST
from inside import ROW_INODE as ROW
from inside import parse_options as parse
from mounting import Mounts, list_from, run_fffs, wait_until
from PIL import Image

from fffs.errors import (
    FffsError,
    FormatError,
    MetadataError,
    ReadError,
    RecordError,
    UnsupportedError,
    UsageError,
)
from fffs.granular import DatasetWriter, ShardedDatasetWriter, encoders
from fffs.mount import MountOptions

BASIC = [path for path in granular.DATASETS if path.endswith("/basic")]
SHARDED = [path for path in granular.DATASETS if "sharded" in granular.FILES[path]["kind"]]

Entry = Mapping[str, Any]


@pytest.fixture(params=[False, True], ids=["pyfuse3", "fastpath"])
def decoding(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Path]]:
    """Mounts of decoded sources. Rows have no fast path, even on request."""
    mounts = Mounts(tmp_path, fastpath=request.param)

    def mount(*sources: Path, **options: Any) -> Path:
        path = mounts(*sources, **options)
        mounts.daemon.expect("without the fast path: its threads serve trees only, and this source is shown row by row")
        return path

    mount.mounts = mounts  # type: ignore[attr-defined]
    yield mount
    mounts.end()


def expect(mount: Callable[..., Path], *patterns: str) -> None:
    """Allow these lines in the log of the last mount."""
    for pattern in patterns:
        mount.mounts.daemon.expect(pattern)  # type: ignore[attr-defined]


def trouble(mount: Callable[..., Path]) -> list[str]:
    return list(mount.mounts.daemon.trouble())  # type: ignore[attr-defined]


def contents(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder by path, after checking stat and listings."""
    found = {}
    for where, folders, files in os.walk(folder, onerror=_raise):
        for name in files:
            path = Path(where, name)
            found[str(path.relative_to(folder))] = path.read_bytes()
            assert path.stat().st_size == len(found[str(path.relative_to(folder))])
        listed = {entry.name: entry.inode() for entry in os.scandir(where)}
        assert listed == {name: os.lstat(os.path.join(where, name)).st_ino for name in folders + files}
    return found


def _raise(error: OSError) -> None:
    raise error


# ---------------------------------------------------------------- records as stored


def test_records_of_every_format_are_numbered_files(tmp_path: Path, mounts: Mounts) -> None:
    bags = {layout: path for path in granular.BAGS for layout in [granular.FILES[path]["layout"]] if "mixed" in path}
    sources = {
        TFRECORD.path("raw.tfrecord"): TFRECORD.records("raw.tfrecord"),
        TFRECORD.path("shards"): records_of(TFRECORD, TFRECORD.files["shards/"]["shards"]),
        OFRECORD.path("classification"): records_of(
            OFRECORD, [f"classification/{part}" for part in OFRECORD.files["classification/"]["parts"]]
        ),
        **{granular.FOLDER / path: granular.records(path) for path in bags.values()},
    }
    assert len(sources) == 6
    mounted = mounts(*sources)
    records = list(itertools.chain(*sources.values()))
    assert sorted(os.listdir(mounted)) == [f"{k:06}" for k in range(len(records))]
    assert [(mounted / f"{k:06}").read_bytes() for k in range(len(records))] == records


def test_the_format_of_files_can_be_named(tmp_path: Path, mounts: Mounts) -> None:
    path = tmp_path / "records"
    shutil.copyfile(granular.FOLDER / next(iter(granular.BAGS)), path)
    with pytest.raises(FormatError):
        load_shown(path)
    mounted = mounts(path, format="bag")
    records = granular.records(next(iter(granular.BAGS)))
    assert [(mounted / name).read_bytes() for name in sorted(os.listdir(mounted))] == records
    with pytest.raises(UsageError, match="records of format Bag cannot be decoded"):
        load_shown(path, format="bag", decode=True)


def records_of(golden: FrameGolden, parts: list[str]) -> list[bytes]:
    return [record for part in parts for record in golden.records(part)]


def test_extended_attributes_name_the_kind_of_checksum(mounts: Mounts) -> None:
    mounted = mounts(TFRECORD.path("raw.tfrecord"), xattr=True)
    rows = TFRECORD.files["raw.tfrecord"]["records"]
    names = [f"user.fffs.{name}" for name in ("crc32c", "record", "source", "verified")]
    for k, row in enumerate(rows):
        path = mounted / f"{k:06}"
        assert sorted(os.listxattr(path)) == names
        assert os.getxattr(path, "user.fffs.crc32c").decode() == row["crc32c"]
        path.read_bytes()
        assert os.getxattr(path, "user.fffs.verified") == b"yes"
    mounted = mounts(OFRECORD.path("five-kinds/part-0"), xattr=True)
    assert sorted(os.listxattr(mounted / "000000")) == names[1:]
    assert os.getxattr(mounted / "000000", "user.fffs.verified") == b"no checksum"


def test_a_damaged_record_of_a_tfrecord_file_is_an_error_of_its_file_alone(tmp_path: Path, mounts: Mounts) -> None:
    records = TFRECORD.records("example.tfrecord")
    source = damaged(tmp_path, 7)
    mounted = mounts(source)
    mounts.daemon.expect("000007: .*record 7: .*checksum")
    mounts.daemon.expect("reads failed, of 1 records")
    for k, record in enumerate(records):
        if k == 7:
            with pytest.raises(OSError) as caught:
                (mounted / "000007").read_bytes()
            assert caught.value.errno == errno.EIO
        else:
            assert (mounted / f"{k:06}").read_bytes() == record
    wait_until(lambda: len(mounts.daemon.trouble()) == 1)  # the line is written after the reply


def damaged(folder: Path, record: int) -> Path:
    """Write a TFRecord file of examples, with a flipped bit in one record."""
    row = TFRECORD.files["example.tfrecord"]["records"][record]
    data = bytearray(TFRECORD.bytes("example.tfrecord"))
    data[row["data_offset"] + row["len"] // 2] ^= 1
    return path_of(folder, "damaged.tfrecord", bytes(data))


def test_a_bag_is_no_packed_folder_whatever_its_last_record_is(tmp_path: Path) -> None:
    data = b"piouhjgbr\x80\x04"
    bag = path_of(tmp_path, "x.bag", data + struct.pack("<2Q", 0, len(data)))
    with load_source([bag]) as source:
        assert source.layout == "plain"


def test_records_of_a_compressed_bag_are_files_of_that_kind(tmp_path: Path, mounts: Mounts) -> None:
    frame = bytes.fromhex("28b52ffd2005290000") + b"hello"  # zstd, one raw block
    mounted = mounts(path_of(tmp_path, "x.bagz", frame + struct.pack("<Q", len(frame))))
    assert contents(mounted) == {"000000.zst": frame}


# ---------------------------------------------------------------- granular


def value_of(path: Path, kind: str, old: bool) -> Any:
    """Return the value in a file, read by other libraries by its ending. old: of granular 0.6.0."""
    name, data = kind.partition("(")[0], path.read_bytes()
    match path.suffix:
        case ".npy":
            return np.load(path, allow_pickle=False)
        case ".jpg" | ".png":
            return np.asarray(Image.open(path))
        case ".txt":
            return data.decode()
        case ".msgpack":
            value = msgpack.unpackb(data)
            return array_of(*value) if name == "array" else arrays_in(value)
        case _ if name == "array":
            return np.frombuffer(data, "<f4").reshape(4, 3)
        case _ if name in ("int", "i64", "u64"):
            return int.from_bytes(data, "little", signed=kind == "i64" or (kind == "int" and not old))
        case _:
            assert path.suffix == ".bin"
            return data


def array_of(dtype: str, shape: list[int], data: bytes) -> Any:
    return np.frombuffer(data, dtype).reshape(shape)


def arrays_in(value: Any) -> Any:
    """Return a structure with the arrays in it."""
    if isinstance(value, dict):
        return {key: arrays_in(item) for key, item in value.items()}
    if isinstance(value, list):
        return array_of(*value[1:]) if len(value) == 4 and value[0] == "_" else [arrays_in(item) for item in value]
    return value


def check_data_set(mounted: Path, told: Entry, endings: dict[str, str]) -> int:
    """Compare each value with the manifest. Returns how many there are. endings: by type."""
    seen = 0
    names = [f"{k:06}" for k in range(told["n"])]
    assert sorted(os.listdir(mounted)) == [*names, "spec.json"]
    for name, point in zip(names, told["points"], strict=True):
        files = {}
        for key, kind in told["spec"].items():
            sequence = kind.endswith("[]") and told["layout"] != "sidecar"
            kind = kind.removesuffix("[]")
            ending = endings.get(kind, endings.get(kind.partition("(")[0], ".bin"))
            files[key + ("" if sequence else ending)] = key
            values = [point[key]] if not sequence else point[key]
            paths = (
                [mounted / name / key / f"{k:06}{ending}" for k in range(len(values))]
                if sequence
                else [mounted / name / (key + ending)]
            )
            if sequence:
                assert sorted(os.listdir(mounted / name / key)) == [path.name for path in paths]
            for path, value in zip(paths, values, strict=True):
                found = value_of(path, kind, "0.6.0" in told["path"])
                number = isinstance(value, int) and isinstance(found, np.ndarray)
                assert granular.matches(int(found) if number else found, value), path
                seen += 1
        assert sorted(os.listdir(mounted / name)) == sorted(files)
    return seen


STORED = {
    "jpg": ".jpg", "jpeg": ".jpg", "png": ".png", "utf8": ".txt", "msgpack": ".msgpack", "tree": ".msgpack",
    "array": ".msgpack", "array(float32,4,3)": ".bin",
}  # fmt: skip
ARRAYS = STORED | {"array": ".npy", "array(float32,4,3)": ".npy"}
NUMBERS = ARRAYS | {"i64": ".npy", "u64": ".npy", "int(8)": ".npy", "int(4)": ".npy"}


@pytest.mark.parametrize("path", [*BASIC, SHARDED[0], SHARDED[-1]])
def test_every_value_of_a_data_set_is_a_file_of_its_type(path: str, mounts: Mounts) -> None:
    told = granular.FILES[path]
    mounted = mounts(granular.FOLDER / path, decode=False)
    assert check_data_set(mounted, told, STORED) >= told["n"] * len(told["spec"]) / 2
    spec = granular.FOLDER / path / told["shards"][0]["folder"] / "spec.json"
    assert (mounted / "spec.json").read_bytes() == spec.read_bytes()


@pytest.mark.parametrize("path", BASIC)
def test_arrays_are_files_that_numpy_loads(path: str, decoding: Callable[..., Path]) -> None:
    check_data_set(decoding(granular.FOLDER / path), granular.FILES[path], ARRAYS)
    check_data_set(decoding(granular.FOLDER / path, decode=True), granular.FILES[path], NUMBERS)


@pytest.mark.parametrize("dtype", ["<f4", ">i2", "|b1", "<M8[D]", "<U2", "|V3", "<c16"])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_arrays_of_any_dtype_and_shape_become_files(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, dtype)
    found = np.load(io.BytesIO(npy.encode(array)), allow_pickle=False)
    assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes())


def test_only_arrays_are_not_for_the_fast_path() -> None:
    for path in (SHARDED[0], "granular-0.24.2/datasets/empty"):
        with load_shown([granular.FOLDER / path]) as view:
            assert type(view) is TreeView
    for path in BASIC:
        with load_shown([granular.FOLDER / path], decode=False) as view:
            assert type(view) is TreeView
        with load_shown([granular.FOLDER / path]) as view:
            assert isinstance(view, DecodedTreeView)
            names = {name for name, node in view.tree.walk() if view.forwarded[node]}
            assert names == {name for name, _ in view.tree.walk() if name.endswith(b".npy")} != set()


@pytest.mark.parametrize("decode", [False, None, True])
def test_a_tree_and_rows_show_the_same(decode: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data sets that are too large for a tree are shown as rows."""
    for path in (*BASIC, *SHARDED, "granular-0.24.2/datasets/empty"):
        with load_shown([granular.FOLDER / path], decode=decode) as view:
            assert isinstance(view, TreeView)
            tree = {name: shown(view, node + 1) for name, node in view.tree.walk()}
        monkeypatch.setattr(granular_layout, "MOST_NODES", 0)
        with load_shown([granular.FOLDER / path], decode=decode) as view:
            assert isinstance(view, RowsView)
            found = {
                b"/".join([b"%06d" % k, row.path(node)]).rstrip(b"/"): row.nodes[node]
                for k in range(view.rows.n)
                for row in [view.decode(k)]
                for node in range(len(row.nodes))
            }
            files = {name: file for name, file in found.items() if isinstance(file, FileContent)} | view.rows.files
            assert files == {name: file for name, file in tree.items() if file is not None}
            assert found.keys() | files.keys() == tree.keys()
        with pytest.raises(UnsupportedError, match="more files than one tree can hold"):
            load_source([granular.FOLDER / path])
        monkeypatch.undo()


def shown(view: TreeView, inode: int) -> FileContent | None:
    """Return how an inode of a tree is shown; None for a folder."""
    if view.tree.is_dir(inode - 1):
        return None
    try:
        return view.file(inode)
    except NotDecoded as missing:
        view.keep(missing.number, view.decode(missing.number))
        return view.file(inode)


def test_a_data_set_with_checksums_of_its_own_is_verified(tmp_path: Path, mounts: Mounts) -> None:
    shutil.copytree(granular.FOLDER / BASIC[0], tmp_path / "set")
    keep_checksums(tmp_path / "set")
    data = bytearray((tmp_path / "set" / "pic.bag").read_bytes())
    (table,) = struct.unpack("<Q", data[-8:])
    bounds = struct.unpack(f"<{(len(data) - table) // 8}Q", data[table:])
    pictures = [bytes(data[a:b]) for a, b in itertools.pairwise(bounds)]
    data[bounds[1] + 100] ^= 1
    (tmp_path / "set" / "pic.bag").write_bytes(data)
    mounted = mounts(tmp_path / "set", decode=False, xattr=True)
    mounts.daemon.expect("000001/pic.jpg: .*pic.bag: record 1: .*checksum")
    mounts.daemon.expect("reads failed, of 1 records")
    for k, picture in enumerate(pictures):
        path = mounted / f"{k:06}" / "pic.jpg"
        assert int(os.getxattr(path, "user.fffs.crc32"), 16) == zlib.crc32(picture)
        if k == 1:
            with pytest.raises(OSError, match="Input/output"):
                path.read_bytes()
        else:
            assert path.read_bytes() == picture
    (tmp_path / "set" / "refs.bag.fffs-crc").write_bytes(b"")
    with pytest.raises(MetadataError, match=r"refs\.bag\.fffs-crc"):
        load_source([tmp_path / "set"])


def test_all_records_of_a_damaged_data_set_can_be_looked_at() -> None:
    with load_records([granular.FOLDER / BASIC[0]]) as source:
        assert source.layout == "plain"
        assert source.store.n == sum(granular.FILES[BASIC[0]]["shards"][0]["bags"].values()) + 1


def test_a_data_set_is_mounted_alone_and_without_a_suffix(tmp_path: Path) -> None:
    data = granular.FOLDER / BASIC[0]
    for sources, suffix in (([data, data], ""), ([data], ".x"), ([TFRECORD.path("raw.tfrecord"), data], "")):
        with pytest.raises(UsageError, match="granular data set"):
            load_shown(sources, suffix)


# ---------------------------------------------------------------- features


def check_features(folder: Path, features: Entry) -> int:
    """Compare a folder with a map of features in a manifest. Returns how many there are."""
    for name, told in features.items():
        assert agrees(told, feature_of(folder, os.fsdecode(file_name(name.encode())))), folder / name
    return len(features)


def feature_of(folder: Path, name: str) -> Any:
    """Return the feature of that name in a folder, in the form of ``decode``."""
    if (folder / f"{name}.npy").exists():
        assert not (folder / name).exists()
        return np.load(folder / f"{name}.npy", allow_pickle=False)
    path = folder / name
    if path.is_dir():
        names = sorted(os.listdir(path))
        assert names == [f"{k:06}" for k in range(len(names))]
        return [(path / name).read_bytes() for name in names]
    return [path.read_bytes()]


def records_told(golden: FrameGolden, path: str) -> list[Any]:
    """Return the records of a file or folder in the manifest."""
    told = golden.files[path]
    parts = told.get("shards") or [path + part for part in told.get("parts", [])] or [path]
    return [row for part in parts for row in golden.files[part]["records"]]


@pytest.mark.parametrize(
    ("golden", "paths"),
    [
        (TFRECORD, ["example.tfrecord", "image.tfrecord", "pypi.tfrecord", "shards/"]),
        (OFRECORD, ["five-kinds/part-0", "extremes/part-0", "classification/"]),
    ],
    ids=["TFRecord", "OFRecord"],
)
def test_every_feature_of_a_golden_file_is_a_file(
    golden: FrameGolden, paths: list[str], decoding: Callable[..., Path]
) -> None:
    records = [row for path in paths for row in records_told(golden, path)]
    mounted = decoding(*map(golden.path, paths), decode=True)
    assert sorted(os.listdir(mounted)) == [f"{k:06}" for k in range(len(records))]
    seen = 0
    for k, row in enumerate(records):
        seen += check_features(mounted / f"{k:06}", row["features"])
        assert len(os.listdir(mounted / f"{k:06}")) == len(row["features"])
    assert seen > 100


def test_every_feature_of_a_sequence_example_is_a_file(decoding: Callable[..., Path]) -> None:
    mounted = decoding(TFRECORD.path("sequence.tfrecord"), decode=True)
    seen = 0
    for k, row in enumerate(TFRECORD.files["sequence.tfrecord"]["records"]):
        told = row["sequence"]
        assert sorted(os.listdir(mounted / f"{k:06}")) == ["context", "feature_lists"]
        check_features(mounted / f"{k:06}" / "context", told["context"])
        for name, lists in told["feature_lists"].items():
            folder = mounted / f"{k:06}" / "feature_lists" / name
            assert len(os.listdir(folder)) == len(lists)
            seen += check_features(folder, {f"{step:06}": feature for step, feature in enumerate(lists)})
    assert seen > 10


def test_pictures_in_features_open(decoding: Callable[..., Path]) -> None:
    mounted = decoding(OFRECORD.path("classification"), decode=True)
    for k in range(12):
        with Image.open(mounted / f"{k:06}" / "encoded") as image:
            assert image.format == "JPEG"
            assert image.size == tuple(
                int(np.load(mounted / f"{k:06}" / f"{key}.npy")[0]) for key in ("width", "height")
            )


def test_what_cannot_be_decoded_is_a_folder_that_cannot_be_listed(
    tmp_path: Path, decoding: Callable[..., Path]
) -> None:
    mounted = decoding(damaged(tmp_path, 7), decode=True)
    expect(decoding, "000007: .*damaged.tfrecord: record 7: .*checksum", "reads failed, of 1 records")
    rows = TFRECORD.files["example.tfrecord"]["records"]
    for k, row in enumerate(rows):
        if k != 7:
            assert check_features(mounted / f"{k:06}", row["features"])
    for call in (os.listdir, lambda folder: os.stat(folder / "name")):
        with pytest.raises(OSError) as caught:
            call(mounted / "000007")
        assert caught.value.errno == errno.EIO
    assert stat.S_ISDIR(os.stat(mounted / "000007").st_mode)
    assert len(trouble(decoding)) == 1, "one line for one bad record"
    mounted = decoding(TFRECORD.path("raw.tfrecord"), decode=True)
    expect(decoding, "000001: .*record 1: cannot be decoded: .*without -o decode", "reads failed")
    assert os.listdir(mounted / "000000") == []  # an empty message has no features
    with pytest.raises(OSError, match="Input/output"):
        os.listdir(mounted / "000001")


def test_damage_after_a_record_was_decoded_is_found(tmp_path: Path, decoding: Callable[..., Path]) -> None:
    source = path_of(tmp_path, "x.tfrecord", TFRECORD.bytes("image.tfrecord"))
    mounted = decoding(source, decode=True)
    expect(decoding, "000002/image%2Fencoded: .*record 2: .*checksum", "reads failed, of 1 records")
    before = {k: sorted(os.listdir(mounted / f"{k:06}")) for k in range(6)}
    row = TFRECORD.files["image.tfrecord"]["records"][2]
    data = bytearray(source.read_bytes())
    data[row["data_offset"] + row["len"] // 2] ^= 1
    source.write_bytes(data)
    for k in range(6):
        assert sorted(os.listdir(mounted / f"{k:06}")) == before[k]
        if k == 2:
            with pytest.raises(OSError, match="Input/output"):
                (mounted / f"{k:06}" / "image%2Fencoded").read_bytes()
        else:
            assert (mounted / f"{k:06}" / "image%2Fencoded").read_bytes()
    assert len(trouble(decoding)) == 1


@pytest.mark.parametrize(
    "source",
    ["ffrecord/mixed-100.ffr", "ffrecord/packed/tree.ffr", "granular/granular-0.6.0/bags/mixed.bag"],
)
def test_decoding_what_cannot_be_decoded_is_one_clear_line(source: str, tmp_path: Path) -> None:
    said = run_fffs("mount", granular.FOLDER.parent / source, tmp_path / "m", "-o", "decode", code=2)
    assert said.count("\n") == 1 and "decode is for OFRecord, TFRecord and granular data sets" in said
    assert not (tmp_path / "m").exists()


# ---------------------------------------------------------------- hostile names

NAMES = [
    b"", b".", b"..", b"...", b"/", b"a/b", b"../../x", b"a\0b", b"a\nb", b"%", b"%2F", b"%25", b"x", b"x.npy",
    b"x%2Enpy", b"n" * 255, b"n" * 256, b"n" * 300, b"n" * 301, "é".encode() * 200, b"\xff", b"\xc3", b"%FF",
    b"000000", b"\x7f", b" ", b"n" * 250 + b".npy", b"n" * 251 + b".npy", b"n" * 252 + b".npy",
]  # fmt: skip


def hostile_message() -> bytes:
    """Return an Example with features of these names, with bytes and, if there is no ending, also with numbers."""
    return encode_bytes(1, b"".join(entry(name, encode_bytes(1, encode_bytes(1, name))) for name in NAMES))


def entry(name: bytes, feature: bytes) -> bytes:
    return encode_bytes(1, encode_bytes(1, name), encode_bytes(2, feature))


def numbers_message() -> bytes:
    return encode_bytes(
        1, b"".join(entry(name, encode_bytes(3, encode_bytes(1, encode_varint(k)))) for k, name in enumerate(NAMES))
    )


def test_hostile_names_of_features_lead_nowhere_else(tmp_path: Path, decoding: Callable[..., Path]) -> None:
    source = path_of(tmp_path, "x.tfrecord", tf_frame(hostile_message()) + tf_frame(numbers_message()))
    mounted = os.fsencode(decoding(source, decode=True))
    listed = os.listdir(mounted + b"/000000")
    assert sorted(listed) == sorted(file_name(name) for name in NAMES)
    assert len(set(listed)) == len(NAMES) and all(len(name) <= 255 for name in listed)
    for name in NAMES:
        with open(mounted + b"/000000/" + file_name(name), "rb") as file:
            assert file.read() == name
    for k, name in enumerate(NAMES):
        assert np.load(os.fsdecode(mounted + b"/000001/" + file_name(name, b".npy"))).tolist() == [k]
    assert sorted(os.listdir(mounted)) == [b"000000", b"000001"]


@given(
    st.lists(st.binary(max_size=400) | st.text("%.2EFnpybi/\0é~", max_size=300).map(str.encode), min_size=2, max_size=6)
)
def test_no_two_names_become_one(names: list[bytes]) -> None:
    endings = (b"", b".npy", b".jpg")
    found = {file_name(name, ending) for name in set(names) for ending in endings}
    assert len(found) == len(set(names)) * len(endings)
    for name in found:
        assert 0 < len(name) <= 255 and name not in (b".", b"..") and not {0, ord("/"), 10} & set(name)
        name.decode()


def test_names_are_escaped_as_documented() -> None:
    for name, expected in (
        (b"plain name", b"plain name"), (b"class/label", b"class%2Flabel"), (b"50%", b"50%25"), (b"", b"%"),
        (b"..", b"%2E%2E"), (b"\xff\n", b"%FF%0A"), (b"x.npy", b"x%2Enpy"), ("grün".encode(), "grün".encode()),
    ):  # fmt: skip
        assert file_name(name) == expected
    assert file_name(b"x.npy", b".npy") == b"x.npy.npy"
    cut = file_name("é".encode() * 200)
    assert len(cut) <= 255 and cut[-66:-64] == b"%~" and cut[:-66] == "é".encode() * 94


def test_hostile_keys_of_a_data_set_lead_nowhere_else(tmp_path: Path, mounts: Mounts) -> None:
    keys = ["k" * 251, "a\nb", "%2F", "x.txt", "é", "x"]
    spec = {key: "utf8[]" if key == "x.txt" else "utf8" for key in keys}
    with DatasetWriter(tmp_path / "set", spec, encoders) as writer:
        writer.append({key: ["one", "two"] if key == "x.txt" else key for key in keys})
    found = contents(mounts(tmp_path / "set"))
    names = {key: os.fsdecode(file_name(key.encode(), b".txt")) for key in keys if key != "x.txt"}
    assert {name for name in names.values() if len(os.fsencode(name)) <= 255} == set(names.values())
    assert found == {
        "spec.json": (tmp_path / "set" / "spec.json").read_bytes(),
        "000000/x%2Etxt/000000.txt": b"one",
        "000000/x%2Etxt/000001.txt": b"two",
        **{f"000000/{name}": key.encode() for key, name in names.items()},
    }


@pytest.mark.parametrize("key", ["../x", "/", "a\0b", "", ".", "..", "k" * 252, "\ud800"])
def test_keys_that_are_no_names_are_refused(key: str, tmp_path: Path) -> None:
    import json

    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "spec.json").write_text(json.dumps({key: "utf8"}))
    (tmp_path / "set" / "refs.bag").touch()
    for load in (load_source, load_shown):
        with pytest.raises(MetadataError):
            load([tmp_path / "set"])


# ---------------------------------------------------------------- hostile data sets


def bag(records: list[bytes]) -> bytes:
    """Return a Bag in layout v1."""
    return b"".join(records) + struct.pack(f"<{len(records) + 1}Q", 0, *itertools.accumulate(map(len, records)))


def data_set(folder: Path, rows: list[bytes], **columns: list[bytes]) -> Path:
    """Write a data set in layout v1 with these records in refs.bag. Columns whose names end in s are sequences."""
    folder.mkdir()
    spec = ", ".join(f'"{key}": "utf8{"[]" if key.endswith("s") else ""}"' for key in sorted(columns))
    (folder / "spec.json").write_text(f"{{{spec}}}")
    for key, records in {**columns, "refs": rows}.items():
        (folder / f"{key}.bag").write_bytes(bag(records))
    return folder


BAD_ROWS = [
    b"\x92\x05\x90", b"\x92\x00\x92\x00\x09", b"\x92\x00\x92\x09\x01", b"\x91\x00", b"\x92\x00", b"\x92\x00\x90\x00",
    b"", b"\x92\xcf" + b"\xff" * 8 + b"\x90", b"\x92\x00\x92\x01\xcf" + b"\xff" * 8, b"\x92\xff\x90",
    b"\x92\x00\x91\x00", b"\xdd\xff\xff\xff\xff", b"\x92\xce\xff\xff\xff\xff\x90", b"\x92" + bytes(500),
]  # fmt: skip


@pytest.mark.parametrize("row", BAD_ROWS)
def test_references_that_lead_out_of_a_column_are_errors(row: bytes, tmp_path: Path) -> None:
    good = b"\x92\x01\x92\x00\x02"
    path = data_set(tmp_path / "set", [good, row, good], k=[b"a", b"b"], s=[b"x", b"y", b"z"] * 2)
    with pytest.raises(RecordError, match=r"refs.bag: record 1"):
        load_source([path])
    with load_shown([path], decode=True) as view:
        for k in (0, 2):
            assert view.decode(k).nodes[0].nodes.keys() == {b"k.txt", b"s"}
        with pytest.raises(RecordError, match=r"refs.bag: record 1"):
            view.decode(1)


def test_a_damaged_row_is_a_folder_that_cannot_be_listed(tmp_path: Path, decoding: Callable[..., Path]) -> None:
    good = b"\x92\x01\x92\x00\x02"
    path = data_set(tmp_path / "set", [good, b"\x92\x05\x90"], k=[b"a", b"b"], s=[b"x", b"y"])
    mounted = decoding(path)
    expect(decoding, "WARNING .*refs.bag: record 1 .*key 0 has the blobs 5 to 5, but only 2 exist")
    expect(decoding, "000001: .*refs.bag: record 1: .*key 0 has the blobs 5 to 5, but only 2 exist", "reads failed")
    assert contents(mounted / "000000") == {"k.txt": b"b", "s/000000.txt": b"x", "s/000001.txt": b"y"}
    with pytest.raises(OSError, match="Input/output"):
        os.listdir(mounted / "000001")
    assert len(trouble(decoding)) == 2, "one when it is mounted, and one when it is read"


def test_rows_that_share_their_blobs_are_refused_before_there_are_too_many(tmp_path: Path) -> None:
    row = b"\x92\x00\x92\x00\xcd\x27\x10"  # ten thousand blobs
    path = data_set(tmp_path / "set", [row] * 10_000, k=[b"a"], s=[b""] * 10_000)
    begin = time.process_time()
    with pytest.raises(MetadataError, match="100000000 blobs, but only 10000 exist"):
        load_source([path])
    assert time.process_time() - begin < 5
    with load_shown([path]) as view:
        assert len(view.decode(0).nodes) == 10_003


def test_a_sequence_of_too_many_files_is_an_error_of_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(granular_layout, "MOST_NODES", 0)
    count = MOST_FILES + 1
    path = data_set(tmp_path / "set", [b"\x92\x00\x92\x00\xce" + struct.pack(">I", count)], k=[b"a"], s=[b""] * count)
    with load_shown([path], decode=True) as view, pytest.raises(RecordError, match="more than 262144 files"):
        view.decode(0)


def test_a_record_of_very_many_values_is_an_error_of_its_folder(tmp_path: Path) -> None:
    many = encode_bytes(1, entry(b"x", encode_bytes(1, encode_bytes(1, b"") * (MOST_FILES + 1))))
    path = path_of(tmp_path, "x.tfrecord", tf_frame(many) + tf_frame(b""))
    with load_shown([path], decode=True) as view:
        begin = time.process_time()
        with pytest.raises(RecordError, match="more than 262144 files"):
            view.decode(0)
        assert time.process_time() - begin < 5
        assert len(view.decode(1).nodes) == 1


def test_a_record_too_large_to_be_decoded_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "part-0"
    with path.open("wb") as file:
        file.write(struct.pack("<q", LARGEST + 1) + entry(b"", b""))
        file.truncate(8 + LARGEST + 1)
    with load_shown([path, path], decode=True) as view, pytest.raises(RecordError, match="at most 67108864"):
        view.decode(0)


def test_a_blob_that_is_no_array_is_an_error_of_its_file(tmp_path: Path, decoding: Callable[..., Path]) -> None:
    good = encoders["array"](np.arange(6, dtype="<i2").reshape(2, 3))
    blobs = [good, good[:-1], good + b"x", b"", b"\xc0", good.replace(b"<i2", b"|O8"), good.replace(b"<i2", b"<i8")]
    unusual = msgpack.packb(["<i2", [3], bytes(6)])[1:]
    blobs.append(b"\xdc\x00\x03" + unusual)  # a list of three, encoded with two bytes more than necessary
    with DatasetWriter(tmp_path / "set", {"a": "array", "b": "bytes"}, encoders | {"array": bytes}) as writer:
        for blob in blobs:
            writer.append({"a": blob, "b": blob})
    mounted = decoding(tmp_path / "set")
    expect(decoding, r"00000[1-6]/a.npy: .*a.bag: record [1-6]: not an array: ", "(6|12) reads failed, of 6 records")
    assert np.load(mounted / "000000/a.npy").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert np.load(mounted / "000007/a.npy").tolist() == [0, 0, 0]
    for k in range(1, 7):
        with pytest.raises(OSError) as caught:
            (mounted / f"{k:06}/a.npy").read_bytes()
        assert caught.value.errno == errno.EIO
        assert (mounted / f"{k:06}/b.bin").read_bytes() == blobs[k]
    assert len(trouble(decoding)) == 6


def test_arrays_may_be_larger_than_any_packet(tmp_path: Path, decoding: Callable[..., Path]) -> None:
    sizes = [0, 20_000, 26_000, 27_000, 50_000, 131_000, 131_072, 1_000_000]
    with DatasetWriter(tmp_path / "set", {"a": "array"}, encoders) as writer:
        for size in sizes:
            writer.append({"a": np.arange(size)})
    mounted = decoding(tmp_path / "set")
    for k, size in enumerate(sizes):
        assert (np.load(mounted / f"{k:06}/a.npy") == np.arange(size)).all()
    with open(mounted / "000007/a.npy", "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pread(file.fileno(), 3 << 20, 128) == np.arange(1_000_000).tobytes()[: 3 << 20]


def test_what_the_system_refuses_once_is_no_size_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with DatasetWriter(tmp_path / "set", {"a": "array"}, encoders) as writer:
        writer.append({"a": np.arange(10)})
    with load_shown([tmp_path / "set"]) as view:
        assert isinstance(view, DecodedTreeView)
        record = view.tree.record(int(np.flatnonzero(view.forwarded)[0]))
        with monkeypatch.context() as patch:
            patch.setattr(type(view.store), "read_range", raise_eio)
            with pytest.raises(ReadError):
                view.decode(record)
        assert view.decode(record).size == 128 + 80


def raise_eio(*_: Any, **__: Any) -> Any:
    raise ReadError(errno.EIO, "x.bag")


@given(st.data())
def test_all_references_at_once_are_those_of_each_row(data: st.DataObject) -> None:
    sequences = data.draw(st.lists(st.booleans(), min_size=1, max_size=20))
    number = st.sampled_from([0, 1, 127, 128, 255, 256, 65535, 65536, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1])
    blobs = data.draw(st.lists(number, min_size=len(sequences), max_size=len(sequences)))
    refs_of = [st.tuples(number, number) if sequence else number for sequence in sequences]
    records = [refs.encode(row) for row in data.draw(st.lists(st.tuples(*refs_of), max_size=6))]
    records += data.draw(st.lists(st.binary(max_size=12), max_size=2))
    shard = Shard("v1", len(records), 0, tuple((1000 * k, count) for k, count in enumerate(blobs)), 0)
    with bag_of(records) as source:
        try:
            rows = [refs_table.check_row(refs.decode(record, sequences), shard) for record in records]
        except ValueError:
            with pytest.raises(RecordError):
                refs_table.load(source, shard, sequences)
            return
        sums = [sum(row[k][1] for row in rows) for k in range(len(sequences))]
        if any(total > blobs[k] for k, total in enumerate(sums) if sequences[k]):
            with pytest.raises(MetadataError):
                refs_table.load(source, shard, sequences)
            return
        table = refs_table.load(source, shard, sequences)
        assert [
            list(zip(*row, strict=True))
            for row in zip(np.array(table.first).T.tolist(), np.array(table.count).T.tolist(), strict=True)
        ] == [[tuple(map(int, place)) for place in row] for row in rows]


class bag_of:  # noqa: N801
    """An open Bag in memory."""

    def __init__(self, records: list[bytes]) -> None:
        fd = os.memfd_create("bag")
        os.write(fd, bag(records))
        self._file = LocalFile(fd, "x.bag")

    def __enter__(self) -> SourceFile:
        return SourceFile(self._file, load_bag(self._file, "v1")[0])

    def __exit__(self, *_: object) -> None:
        self._file.close()


# ---------------------------------------------------------------- rows as folders


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A data set with arrays, sequences and shards."""
    spec = {"frame": "array", "notes": "utf8[]", "parts": "array[]", "raw": "bytes"}
    with ShardedDatasetWriter(tmp_path / "mixed", spec, encoders, shardlen=3) as writer:
        for k in range(8):
            writer.append(
                {
                    "frame": np.arange(k * 1000, dtype=np.float32).reshape(k, 1000),
                    "notes": [f"note {j}" for j in range(300 if k == 5 else k)],
                    "parts": [np.full((2, j), j) for j in range(k % 3)],
                    "raw": os.urandom(k * 50_000),
                }
            )
    return tmp_path / "mixed"


def test_ordinary_tools_read_what_is_decoded(mixed: Path, tmp_path: Path, decoding: Callable[..., Path]) -> None:
    mounted = decoding(mixed)
    found = contents(mounted)
    assert len(found) == 1 + 8 * 2 + sum((0, 1, 2, 3, 4, 300, 6, 7)) + sum(k % 3 for k in range(8))
    subprocess.run(["cp", "-r", mounted, tmp_path / "copy"], check=True)
    assert contents(tmp_path / "copy") == found
    archive = subprocess.run(["tar", "cf", "-", "-C", mounted, "."], check=True, capture_output=True)
    assert not archive.stderr
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        assert {m.name[2:]: tar.extractfile(m).read() for m in tar if m.isfile()} == found  # type: ignore[union-attr]
    listing = ["find", ".", "-printf", "%p %y %s\n"]
    sizes = {
        line.split()[0][2:]: int(line.split()[2])
        for line in subprocess.check_output(listing, cwd=mounted, text=True).splitlines()
        if line.split()[1] == "f"
    }
    assert sizes == {name: len(data) for name, data in found.items()}
    assert np.array_equal(
        np.load(mounted / "000007/frame.npy", mmap_mode="r"), np.arange(7000, dtype="f4").reshape(7, 1000)
    )


def test_any_range_of_a_computed_file_is_that_of_the_file(mixed: Path, decoding: Callable[..., Path]) -> None:
    path = decoding(mixed) / "000003" / "frame.npy"
    out = io.BytesIO()
    np.save(out, np.arange(3000, dtype=np.float32).reshape(3, 1000))
    expected = out.getvalue()
    assert path.read_bytes() == expected
    fd = os.open(path, os.O_RDONLY)
    for start, size in itertools.product(
        (0, 1, 127, 128, 129, 4095, 4096, len(expected) - 1, len(expected), 10**6), (1, 2, 130, 5000, 10**6)
    ):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pread(fd, size, start) == expected[start : start + size]
    os.close(fd)


def test_a_listing_of_rows_can_begin_at_every_offset(mixed: Path, decoding: Callable[..., Path]) -> None:
    mounted = decoding(mixed)
    for folder, names in (
        (mounted, [f"{k:06}" for k in range(8)] + ["spec.json"]),
        (mounted / "000005", ["frame.npy", "notes", "parts", "raw.bin"]),
        (mounted / "000005" / "notes", [f"{k:06}.txt" for k in range(300)]),
        (mounted / "000000" / "notes", []),
    ):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            entries, offset = [], 0
            while part := list_from(fd, offset, 1000):
                entries += part
                offset = part[-1][2]
            assert [name for name, _, _ in entries] == [b".", b"..", *map(os.fsencode, names)]
            for k in [*range(0, len(entries), 7), len(entries) - 1, 0]:  # also backwards
                assert [name for name, _, _ in list_from(fd, entries[k][2], 300)][:1] == [
                    name for name, _, _ in entries[k + 1 : k + 2]
                ]
            assert list_from(fd, offset + 1000) == []
            assert (entries[0][1], entries[1][1]) == (
                os.stat(folder).st_ino,
                os.stat(folder / ".." if folder != mounted else mounted).st_ino,
            )
        finally:
            os.close(fd)


def test_attributes_of_what_is_decoded(mixed: Path, decoding: Callable[..., Path]) -> None:
    mounted = decoding(mixed, uid=12, gid=34, umask=0o027, xattr=True)
    root, row, folder, file = (os.stat(mounted / name) for name in ("", "000005", "000005/notes", "000005/frame.npy"))
    assert [stat.S_IMODE(status.st_mode) for status in (root, row, folder, file)] == [0o750, 0o750, 0o750, 0o640]
    assert [status.st_nlink for status in (root, row, folder, file)] == [10, 4, 2, 1]
    assert all((status.st_uid, status.st_gid) == (12, 34) for status in (root, row, folder, file))
    newest = max(path.stat().st_mtime_ns for path in mixed.rglob("*.*"))
    assert {status.st_mtime_ns for status in (root, row, folder, file)} == {newest}
    assert (root.st_ino, row.st_ino) == (1, 7)
    found = os.statvfs(mounted)
    assert (found.f_bfree, found.f_ffree, found.f_files) == (0, 0, sum(1 for _ in mounted.rglob("*")) + 1)
    assert found.f_blocks == -(
        -sum(path.stat().st_size for path in {*mixed.rglob("*.bag"), mixed / "000000/spec.json"}) // 4096
    )
    assert os.listxattr(mounted) == ["user.fffs.source"]
    assert os.listxattr(mounted / "000005/notes") == []
    assert os.getxattr(mounted / "000005/raw.bin", "user.fffs.source") == os.fsencode(mixed / "000001/raw.bag")
    assert os.getxattr(mounted / "000005/raw.bin", "user.fffs.record") == b"2"
    assert os.getxattr(mounted / "spec.json", "user.fffs.verified") == b"no checksum"
    for path, name in (("", "user.fffs.record"), ("000005/notes", "user.fffs.source"), ("000005/raw.bin", "user.x")):
        with pytest.raises(OSError) as caught:
            os.getxattr(mounted / path, name)
        assert caught.value.errno == errno.ENODATA


def test_folders_of_records_have_their_attributes(decoding: Callable[..., Path]) -> None:
    mounted = decoding(TFRECORD.path("shards"), decode=True, xattr=True)
    row = TFRECORD.files["shards/demo-train.tfrecord-00001-of-00003"]["records"][1]
    for path in (mounted / "000005", mounted / "000005" / "name", mounted / "000005" / "id.npy"):
        assert os.getxattr(path, "user.fffs.crc32c").decode() == row["crc32c"]
        assert os.getxattr(path, "user.fffs.record") == b"1"


def test_what_is_decoded_cannot_be_changed(mixed: Path, decoding: Callable[..., Path]) -> None:
    mounted = decoding(mixed)
    calls: list[Callable[[], Any]] = [
        lambda: os.open(mounted / "000001/raw.bin", os.O_RDWR),
        lambda: os.open(mounted / "000001/new", os.O_WRONLY | os.O_CREAT),
        lambda: os.unlink(mounted / "000001/raw.bin"),
        lambda: os.rmdir(mounted / "000001"),
        lambda: os.mkdir(mounted / "new"),
        lambda: os.rename(mounted / "000001", mounted / "x"),
        lambda: os.symlink("x", mounted / "000001/link"),
        lambda: os.link(mounted / "000001/raw.bin", mounted / "x"),
        lambda: os.chmod(mounted / "000001", 0o777),
        lambda: os.utime(mounted / "000001/raw.bin"),
        lambda: os.truncate(mounted / "000001/frame.npy", 0),
        lambda: os.setxattr(mounted / "000001", "user.x", b""),
        lambda: os.removexattr(mounted / "spec.json", "user.fffs.source"),
    ]
    for call in calls:
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == errno.EROFS


def test_names_that_are_in_no_row(mixed: Path, decoding: Callable[..., Path]) -> None:
    mounted = decoding(mixed)
    for name in (
        "000008",
        "0000001",
        "00001",
        "-00001",
        "+00001",
        "\u0660" * 6,
        "000001/x",
        "000001/notes/x",
        "spec",
        "x",
    ):
        for _ in range(2):
            assert not os.path.lexists(mounted / name)
    with pytest.raises(NotADirectoryError):
        os.stat(mounted / "000001" / "raw.bin" / "x")
    with pytest.raises(OSError, match="too long"):
        os.stat(mounted / "000001" / ("n" * 256))


def test_an_inode_of_a_row_alone_leads_upwards_and_one_that_never_was_is_stale(
    mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyfuse3
    from inside import Operations

    monkeypatch.setattr(granular_layout, "MOST_NODES", 0)

    async def look(operations: Operations) -> None:
        notes = (await operations.lookup(6 * ROW, b"notes", None)).st_ino
        first = (await operations.lookup(notes, b"000000.txt", None)).st_ino
        for inode, above in ((notes, 6 * ROW), (6 * ROW, 1), (1, 1)):
            assert (await operations.lookup(inode, b"..", None)).st_ino == above
            assert (await operations.lookup(inode, b".", None)).st_ino == inode
        assert (await operations.getattr(first, None)).st_size == len("note 0")
        beside = (await operations.lookup(1, b"spec.json", None)).st_ino
        assert (await operations.lookup(beside, b".", None)).st_ino == beside
        assert (await operations.lookup(beside, b"..", None)).st_ino == 1
        with pytest.raises(pyfuse3.FUSEError) as no_folder:
            await operations.lookup(beside, b"x", None)
        assert no_folder.value.errno == errno.ENOTDIR
        for inode in (3, ROW - 1, 9 * ROW, 6 * ROW + 100_000, 1 << 63):
            for call in (
                operations.getattr(inode, None),
                operations.lookup(inode, b"x", None),
                operations.read(inode, 0, 1),
            ):
                with pytest.raises(pyfuse3.FUSEError) as caught:
                    await call
                assert caught.value.errno == errno.ESTALE

    with load_shown([mixed]) as view:
        trio.run(look, Operations(view, MountOptions()))


# ---------------------------------------------------------------- the cache of rows


class Slow:
    """Rows of a given cost, read from records of one size. Counts how often they are decoded."""

    mtime, files = 0, {}

    def __init__(self, cost: int) -> None:
        self.n, self.cost, self.loads = 10, cost, 0

    def record(self, number: int) -> int:
        return 0

    def load(self, number: int) -> Row:
        self.loads += 1
        time.sleep(0.01)
        return Row({b"x": FileContent(bytes(self.cost))})


class FileOnDisk(NamedTuple):
    """Stands for a file; only these are asked for."""

    device: int
    is_remote: bool = False


async def look_at(slow: Slow, size: int, *numbers: int, at_once: bool = False) -> None:
    """Open the folders of rows. size: of their records, in bytes."""
    from inside import Operations

    store = SimpleNamespace(
        files=[SimpleNamespace(file=FileOnDisk(1))],
        length=lambda _: size,
        locate=lambda _: (store.files[0], 0),
        verify=list,
    )
    operations = Operations(RowsView(slow, store), MountOptions())  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        for number in numbers:
            if at_once:
                nursery.start_soon(operations.lookup, (number + 1) * ROW, b"x", None)
            else:
                await operations.lookup((number + 1) * ROW, b"x", None)


@pytest.mark.fuse
def test_rows_that_nobody_looks_at_are_forgotten() -> None:
    slow = Slow(CAPACITY // 4)
    trio.run(look_at, slow, 0, 0, 1, 2, 0, 3, 0, 1)
    assert slow.loads == 5, "0 was looked at lately, and 1 was not"
    large = Slow(CAPACITY * 2)
    trio.run(look_at, large, 0, 0, 0, 1, 0, 1, 0, 2, 0, 1)
    assert large.loads == 4, "two are kept, however large: a program that compares files reads two in turn"


@pytest.mark.fuse
@pytest.mark.parametrize("size", [0, LARGE])
def test_a_row_is_decoded_once_for_all_who_ask_at_a_time(size: int) -> None:
    slow = Slow(10)
    trio.run(functools.partial(look_at, slow, size, 5, 5, 5, 5, at_once=True))
    assert slow.loads == 1


@pytest.mark.fuse
def test_a_disk_that_does_not_answer_keeps_no_large_record_of_another_waiting() -> None:
    """Large records are decoded one at a time; a record on another disk must not wait for a stalled one."""
    from inside import Reading

    answers = threading.Event()

    def verify(numbers: np.ndarray) -> None:
        if numbers[0] == 0:
            answers.wait(60)

    files = [SimpleNamespace(file=FileOnDisk(disk)) for disk in (1, 2)]
    store = SimpleNamespace(files=files, length=lambda _: LARGE, locate=lambda k: (files[k], 0), verify=verify)
    kept: list[int] = []
    view = SimpleNamespace(store=store, decode=lambda k: k, keep=lambda k, _: kept.append(k))
    reading = Reading(view)  # type: ignore[arg-type]

    async def read() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reading.decode, NotDecoded(0, 2, 0))
            await trio.testing.wait_all_tasks_blocked()
            with trio.fail_after(30):
                await reading.decode(NotDecoded(1, 3, 1))
            assert kept == [1]
            answers.set()

    trio.run(read)
    assert kept == [1, 0]


def test_nodes_of_a_row_are_numbered_folder_by_folder() -> None:
    entries: Entries = {b"b": FileContent(b"12"), b"a": {b"y": FileContent(), b"x": {}}, b"c": {}}
    row = Row(entries)
    assert [row.path(node) for node in range(len(row.nodes))] == [b"", b"a", b"b", b"c", b"a/x", b"a/y"]
    assert row.nodes[0] == RowFolder({b"a": 1, b"b": 2, b"c": 3}, 2)
    assert row.nodes[1] == RowFolder({b"x": 4, b"y": 5}, 1)
    assert row.parents == [0, 0, 0, 0, 1, 1]
    assert row.cost == 2 + 6 * rows.NODE_BYTES


# ---------------------------------------------------------------- options


def test_decode_is_an_option_with_and_without_a_value() -> None:
    assert parse([]).decode is None
    assert parse(["decode"]).decode is True
    assert parse(["decode=on"]).decode is True
    assert parse(["decode=off"]).decode is False
    assert parse(["decode,decode=auto"]).decode is None
    for option in ("decode=yes", "decode="):
        with pytest.raises(UsageError, match="-o decode="):
            parse([option])
    with pytest.raises(UsageError, match=r"decode\[=auto\|on\|off\]"):
        parse(["nonsense"])
    with pytest.raises(UsageError, match="--suffix"):
        load_shown([TFRECORD.path("example.tfrecord")], ".x", decode=True)


def test_damaged_data_sets_are_refused_with_a_reason(tmp_path: Path) -> None:
    for name, change in {
        "no column": lambda path: (path / "name.bag").unlink(),
        "no refs": lambda path: (path / "refs.bag").write_bytes(b"x"),
        "other spec": lambda path: (path / "spec.json").write_text('{"a": 1}'),
        "cut": lambda path: os.truncate(path / "pic.bag", 100),
    }.items():
        path = tmp_path / name
        shutil.copytree(granular.FOLDER / BASIC[0], path)
        change(path)
        before = len(os.listdir("/proc/self/fd"))
        for load in (load_source, load_shown, load_records):
            with pytest.raises(FffsError):
                load([path])
        assert len(os.listdir("/proc/self/fd")) == before


# ---------------------------------------------------------------- times


@pytest.mark.parametrize(
    ("source", "decode"),
    [
        ("ffrecord/mixed-100.ffr", None),
        ("ffrecord/packed/tree.ffr", None),
        ("tfrecord/example.tfrecord", None),
        ("tfrecord/example.tfrecord", True),
        ("ofrecord/digits", None),
        ("granular/granular-0.24.2/bags", None),
    ],
)
def test_a_source_of_the_year_2400_is_shown_with_the_nearest_time(
    source: str, decode: bool | None, tmp_path: Path
) -> None:
    golden = Path(__file__).parent / "golden" / source
    copy = tmp_path / golden.name
    (shutil.copytree if golden.is_dir() else shutil.copy)(golden, copy)
    if "bags" in source:
        copy = next(copy.rglob("*.bag"))
    for path in [copy, *copy.rglob("*")]:
        os.utime(path, (13_569_465_600, 13_569_465_600))
    with load_shown([copy], decode=decode) as view:
        assert 2**63 - 1 in view.attributes(next(itertools.islice(view.entries(1), 2, None))[1])
