"""MDS, the format of Mosaic's streaming data sets, becomes packs and records."""

from __future__ import annotations

import json
import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import MIB, stretched
from inside import imports, mds_folder
from object_server import serving
from test_convert import left_in, records_of
from test_tables import pack_contents

import fffs
from fffs.errors import FffsError, FormatError, UsageError

COLUMNS = {
    "image": ("jpeg", None),
    "label": ("int", 8),
    "raw": ("pkl", None),
    "score": ("float32", 4),
    "text": ("str", None),
}
ROWS = [
    {
        "image": stretched(k * 999, k),
        "label": k - 3,
        "raw": b"\x80\x04N.",
        "score": 0.5 * k,
        "text": f"größer {k}".encode(),
    }
    for k in range(7)
] + [{"image": stretched(2 * MIB), "label": -(2**63), "raw": b"", "score": -1.0, "text": b""}]


def shard_of(rows: list[dict[str, Any]]) -> bytes:
    """Return the bytes of a shard as Mosaic's MDSWriter lays them out."""
    samples = []
    for row in rows:
        data = [row["image"], struct.pack("<q", row["label"]), row["raw"], struct.pack("<f", row["score"]), row["text"]]
        sizes = [len(data[k]) for k, (_, size) in enumerate(COLUMNS.values()) if size is None]
        samples.append(struct.pack(f"<{len(sizes)}I", *sizes) + b"".join(data))
    config = b'{"format": "mds"}'  # MDSWriter stores its arguments between the offsets and the samples
    begin = 4 * (len(rows) + 2) + len(config)
    offsets = [begin + sum(map(len, samples[:k])) for k in range(len(rows) + 1)]
    return struct.pack(f"<{len(rows) + 2}I", len(rows), *offsets) + config + b"".join(samples)


def write_mds(folder: Path, **changes: Any) -> Path:
    folder.mkdir()
    shards = []
    for k, rows in enumerate((ROWS[:3], ROWS[3:3], ROWS[3:])):
        data = shard_of(rows)
        name = f"shard.{k:05}.mds"
        (folder / name).write_bytes(data)
        raw = {"basename": name, "bytes": len(data), "hashes": {}}
        shards.append(
            {
                "column_names": list(COLUMNS),
                "column_encodings": [encoding for encoding, _ in COLUMNS.values()],
                "column_sizes": [size for _, size in COLUMNS.values()],
                "compression": None,
                "format": "mds",
                "hashes": [],
                "raw_data": raw,
                "samples": len(rows),
                "size_limit": 1 << 26,
                "version": 2,
                "zip_data": None,
            }
        )
    shards[0].update(changes)
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    return folder


def test_samples_become_files(tmp_path: Path) -> None:
    source, lines = write_mds(tmp_path / "x"), list[str]()
    done = fffs.convert(source, tmp_path / "y.ffr", verify=True, warn=lines.append)
    assert (done.source, done.items) == ("mds", 40)
    found = pack_contents(tmp_path / "y.ffr")
    for k, row in enumerate(ROWS):
        for name, value in row.items():
            assert found[b"%06d.%b" % (k, name.encode())] == (
                value if isinstance(value, bytes) else json.dumps(value).encode()
            )
    assert lines == [
        f"{source}: becomes text: label (int), score (float32)",
        f"{source}: stays as MDS encodes it: raw (pkl)",
    ]


def merge_mds(folder: Path, write: Callable[[Path], Path]) -> Path:
    """Write a data set twice below a folder, and an index of both, as Mosaic's ``merge_index`` does."""
    folder.mkdir()
    shards = []
    for name in ("part0", "part1"):
        for shard in json.loads((write(folder / name) / "index.json").read_text())["shards"]:
            for about in filter(None, (shard["raw_data"], shard["zip_data"])):
                about["basename"] = f"{name}/{about['basename']}"
            shards.append(shard)
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    return folder


def test_a_set_of_several_writers(tmp_path: Path) -> None:
    source = merge_mds(tmp_path / "x", write_mds)
    assert fffs.convert(source, tmp_path / "y.ffr", verify=True, warn=lambda _: None).source == "mds"
    fffs.convert(source, tmp_path / "y.bag", column="image", warn=lambda _: None)
    assert records_of(tmp_path / "y.bag") == [row["image"] for row in ROWS * 2]


def test_a_writer_without_samples(tmp_path: Path) -> None:
    source = merge_mds(tmp_path / "x", write_mds)
    (source / "part2").mkdir()
    (source / "part2/index.json").write_text('{"version": 2, "shards": []}')
    assert fffs.convert(source, tmp_path / "y.ffr", warn=lambda _: None).source == "mds"


@pytest.mark.parametrize("other", ["file", "empty", "set", "index", "link", "folder"])
def test_a_folder_that_is_not_only_a_set_of_several_writers(tmp_path: Path, other: str) -> None:
    source = merge_mds(tmp_path / "x", write_mds)
    index = source / "index.json"
    if other == "index":
        index.write_text('{"version": 1, "shards": [{}]}')
    elif other in ("link", "folder"):
        index.unlink()
        index.symlink_to("nowhere") if other == "link" else index.mkdir()
    elif other == "file":
        (source / other).touch()
    elif other == "set":
        write_mds(source / other)
    else:
        (source / other).mkdir()
    assert fffs.convert(source, tmp_path / "y.ffr").source == "folder"


def test_small_columns_beside_large_ones_take_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait until they are some MiB, without the samples that they were read with."""
    monkeypatch.setitem(globals(), "ROWS", [{**ROWS[0], "image": stretched(2 * MIB, k)} for k in range(64)])
    source = write_mds(tmp_path / "x")
    tracemalloc.start()
    try:
        fffs.convert(source, tmp_path / "y.ffr", warn=lambda _: None)
        assert tracemalloc.get_traced_memory()[1] < 40 * MIB
    finally:
        tracemalloc.stop()


def test_a_column_becomes_records(tmp_path: Path) -> None:
    source, lines = write_mds(tmp_path / "x"), list[str]()
    fffs.convert(source, tmp_path / "y.bag", column="image", verify=True, warn=lines.append)
    assert records_of(tmp_path / "y.bag") == [row["image"] for row in ROWS]
    assert lines == [f"{source}: the columns label, raw, score, text are not kept"]
    for column, message in (
        ("label", "is int, and records are bytes"),
        ("other", "has no column 'other'; it has image"),
        (None, "choose the column that becomes records"),
    ):
        with pytest.raises(UsageError, match=message):
            fffs.convert(source, tmp_path / "z.bag", column=column)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"raw_data": {"basename": "../outside.mds"}}, "outside of the folder"),
        ({"raw_data": {"basename": "/etc/passwd"}}, "outside of the folder"),
        ({"raw_data": {"basename": ".."}}, "outside of the folder"),
        ({"raw_data": {"basename": "a\0b"}}, "outside of the folder"),
        ({"raw_data": {"basename": 7}}, "outside of the folder"),
        ({"raw_data": {"basename": "\ud800"}}, "damaged"),
        ({"raw_data": {"basename": "shard.00001.mds"}}, "several times"),
        ({"raw_data": None}, "damaged"),
        ({"samples": 2**31}, "too short for the 2147483648 samples"),
        ({"samples": 2}, "table of samples"),
        ({"samples": -1}, "damaged"),
        ({"samples": "3"}, "damaged"),
        ({"column_sizes": [None, 2**40, None, 4, None]}, "damaged"),
        ({"column_names": ["image"]}, "damaged"),
        ({"column_names": ["\ud800", "label", "raw", "score", "text"]}, "damaged"),
        ({"column_names": ["a/../../x", "label", "raw", "score", "text"]}, "other columns"),
        ({"compression": "zstd:7"}, "damaged"),  # without zip_data
        ({"format": "json"}, "only of mds"),
    ],
)
def test_an_index_that_lies_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    (tmp_path / "outside.mds").write_bytes(shard_of(ROWS[:3]))
    source = write_mds(tmp_path / "x", **change)
    with pytest.raises(FormatError, match=message) as caught:
        fffs.convert(source, tmp_path / "y.ffr", warn=lambda _: None)
    assert str(source) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert left_in(tmp_path) == ["outside.mds", "x"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1, "shards": []}', '{"version": 2}', "[" * 10**5])
def test_a_file_that_is_no_index_is_refused(tmp_path: Path, text: str) -> None:
    source = write_mds(tmp_path / "x")
    (source / "index.json").write_text(text)
    with pytest.raises(FormatError, match=r"x/index\.json: "):
        fffs.convert(source, tmp_path / "y.ffr")


def test_damaged_shards_are_refused(tmp_path: Path) -> None:
    source = write_mds(tmp_path / "x")
    shard = source / "shard.00000.mds"
    whole = shard.read_bytes()
    refused, changed = 0, [whole[:size] for size in range(0, len(whole), 400)]
    for at in range(0, 80, 2):
        changed.append(whole[:at] + bytes([whole[at] ^ 0x81]) + whole[at + 1 :])
    for data in changed:
        shard.write_bytes(data)
        try:
            fffs.convert(source, tmp_path / "y.ffr", force=True, warn=lambda _: None)
        except FffsError as error:
            refused += 1
            assert str(error).startswith(f"{shard}: ")
            assert "\n" not in str(error)
    assert refused > len(changed) // 2
    os.unlink(shard)
    with pytest.raises(FileNotFoundError, match=r"shard\.00000\.mds"):
        fffs.convert(source, tmp_path / "z.ffr", warn=lambda _: None)


@pytest.mark.parametrize(("data", "problem"), [(b"[1]", "not a JSON object"), (b"{", "not JSON"), (None, "more than")])
def test_an_index_that_is_no_json_object_or_too_large_is_refused(
    tmp_path: Path, data: bytes | None, problem: str
) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "shard.00000.mds").touch()
    with (tmp_path / "set" / "index.json").open("wb") as file:
        file.write(data) if data else file.truncate(1 << 40)
    with pytest.raises(FormatError, match=rf"index\.json: .*{problem}"):
        fffs.convert(tmp_path / "set", tmp_path / "x.ffr", from_="mds")


def test_samples_are_read_several_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request for each would take hours in a store."""
    source = write_mds(tmp_path / "x")
    expected = [row["image"] for row in ROWS]
    for size, most in ((0, 9), (1, 9), (1500, 9), (4 * MIB, 9), (4 * MIB, 1), (4 * MIB, 2)):
        monkeypatch.setattr(mds_folder, "READ", size)
        monkeypatch.setattr(mds_folder, "MOST", most)
        fffs.convert(source, tmp_path / "y.bag", column="image", force=True, warn=lambda _: None)
        assert records_of(tmp_path / "y.bag") == expected
    monkeypatch.undo()
    rows = [{**ROWS[0], "label": k} for k in range(5000)]
    (source / "shard.00000.mds").write_bytes(shard_of(rows))
    objects = {f"/x/{path.name}": path.read_bytes() for path in source.iterdir()}
    index = json.loads(objects["/x/index.json"])
    index["shards"][0]["samples"] = len(rows)
    objects["/x/index.json"] = json.dumps(index).encode()
    with serving(objects=objects) as server:
        items = imports.MDS.open([f"{server.url}/x/{name}" for name in ("index.json", *names_of(index))], "x")
        assert len(list(items.values("image"))) == len(rows) + len(ROWS) - 3
        items.close()
        assert len(server.requests) < 40


def names_of(index: dict[str, Any]) -> list[str]:
    return [shard["raw_data"]["basename"] for shard in index["shards"]]
