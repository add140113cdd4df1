"""Compressed shards of MDS: what is read, and what is refused before it takes memory."""

from __future__ import annotations

import base64
import bz2
import gzip
import importlib
import json
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_convert import left_in, records_of
from test_mds import ROWS, merge_mds, write_mds
from test_tables import pack_contents

import fffs
from fffs.errors import FffsError, FormatError, UsageError

ZSTD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
zstd = importlib.import_module(ZSTD)
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "zstd": zstd.compress,
    "zstd:9": lambda data: bytes(zstd.compress(data, 9)),
    "gz": gzip.compress,
    "gz:0": lambda data: gzip.compress(data, 0),
    "bz2:1": lambda data: bz2.compress(data, 1),
}
KINDS = ("zstd", "gz", "bz2:1")


WRITTEN_BY_MOSAIC = {
    "zstd": (
        "KLUv/SDwpQUAookiKJCn6b9/X9jMzMxMoCBhobZt+HtvTOiTUFuN351aiCKxjGfy3dJi9qXd3d3dkeE6T/xHKCygGmRSAAeCKIyAY9sy"
        "RaNlYz2sD6+HmxZXg89pIkeZknRvmRUWNMYglxQSLR8wXRbTtlxSA8kaEZZMKqPbFEhJMoHb5jFOFdcg9phM+N/wn+H/wv9DDwAsQeOD"
        "m0Iqpna0aERgUNO0UdPKrezyahgwzFB8j7K6qEEuEQoK"
    ),
    "gz": (
        "H4sIACxtB2sC/01PWwrCMBAMgniNst/9sCK1eBWRkrZpG8ijZFPRiof0Ch7AK2jW5MOBgd2Z2YFdMcaega/Ad+AdWqtmbWphWttJMyAc"
        "sxNI4yHPoLl5gXAOU0oZrkVMKN4IRZnrv49yiX6VZ2ZWKlp6cgJRWhMcGBa66q3T3NOuOyRh5Dimahx58SultlpJLSlYHoptVZX7oF+E"
        "S227xzo8sWERvXToafgkfAF/Lnkg7gAAAA=="
    ),
    "bz2": (
        "QlpoOTFBWSZTWb3m3boAAAxbg96AUAR10AAKv+ffehAACACAAKAAkg0jTST0TyT0gZAAwmmamGJTFGgGg0DJ6g9QaDakoMIXv/XvJNKn"
        "Ns1aISKBWTTdLw5Kgj7XrE0RYEkdtpQXBrcEeU8MYM2KiNIAeAhUqpIeXM12WAcoDFj7bZMcled89HJaofTMY0LEWpCUS1sqzQkKcpnI"
        "N2RBYe2WqZKZGA9+yk4IbItd/OonCsILviiwJWgu5IpwoSF7zbt0"
    ),
}
"""Shards with the columns label and x and two samples, which MDSWriter of mosaicml-streaming 0.13 compressed."""


def compress_mds(folder: Path, kind: str, keep_raw: bool = False, **changes: Any) -> Path:
    """Compress the shards of a new data set, as Mosaic's MDSWriter does. changes: of the first shard in its index."""
    write_mds(folder)
    index = json.loads((folder / "index.json").read_text())
    for shard in index["shards"]:
        raw = folder / shard["raw_data"]["basename"]
        data = COMPRESS[kind](raw.read_bytes())
        zipped = raw.with_name(f"{raw.name}.{kind.partition(':')[0]}")
        zipped.write_bytes(data)
        shard["compression"] = kind
        shard["zip_data"] = {"basename": zipped.name, "bytes": len(data), "hashes": {}}
        if not keep_raw:
            raw.unlink()
    index["shards"][0].update(changes)
    (folder / "index.json").write_text(json.dumps(index))
    return folder


def replace_shard(folder: Path, data: bytes, **sizes: int) -> Path:
    """Give the first shard other bytes. sizes: what the index lists, if it lies."""
    index = json.loads((folder / "index.json").read_text())
    shard = index["shards"][0]
    (folder / shard["zip_data"]["basename"]).write_bytes(data)
    shard["zip_data"]["bytes"] = len(data)
    shard["raw_data"]["bytes"] = sizes.get("raw", shard["raw_data"]["bytes"])
    (folder / "index.json").write_text(json.dumps(index))
    return folder / shard["zip_data"]["basename"]


def convert(source: Path, target: Path) -> Any:
    return fffs.convert(source, target, verify=True, force=True, warn=lambda _: None)


@pytest.mark.parametrize("kind", COMPRESS)
def test_compressed_shards_have_the_same_content(tmp_path: Path, kind: str) -> None:
    convert(write_mds(tmp_path / "plain"), tmp_path / "plain.ffr")
    source = compress_mds(tmp_path / "x", kind)
    assert convert(source, tmp_path / "y.ffr").source == "mds"
    assert pack_contents(tmp_path / "y.ffr") == pack_contents(tmp_path / "plain.ffr")
    fffs.convert(source, tmp_path / "y.bag", column="image", warn=lambda _: None)
    assert records_of(tmp_path / "y.bag") == [row["image"] for row in ROWS]


@pytest.mark.parametrize("kind", WRITTEN_BY_MOSAIC)
def test_what_the_library_of_mosaic_compressed_is_read(tmp_path: Path, kind: str) -> None:
    data = base64.b64decode(WRITTEN_BY_MOSAIC[kind])
    size = 236 + len(kind)  # the shard contains the arguments of its writer
    shard = {
        "column_encodings": ["int", "bytes"],
        "column_names": ["label", "x"],
        "column_sizes": [8, None],
        "compression": kind,
        "format": "mds",
        "hashes": [],
        "raw_data": {"basename": "shard.00000.mds", "bytes": size, "hashes": {}},
        "samples": 2,
        "size_limit": 67108864,
        "version": 2,
        "zip_data": {"basename": f"shard.00000.mds.{kind}", "bytes": len(data), "hashes": {}},
    }
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / f"shard.00000.mds.{kind}").write_bytes(data)
    (tmp_path / "x/index.json").write_text(json.dumps({"shards": [shard], "version": 2}))
    convert(tmp_path / "x", tmp_path / "y.ffr")
    expected = {b"000000.label": b"7", b"000000.x": b"first", b"000001.label": b"-1", b"000001.x": b""}
    assert pack_contents(tmp_path / "y.ffr").items() >= expected.items()


def test_the_cache_of_a_streaming_data_set_has_decompressed_shards(tmp_path: Path) -> None:
    source = compress_mds(tmp_path / "x", "zstd", keep_raw=True)
    (source / "shard.00000.mds.zstd").unlink()
    (source / "shard.00001.mds").unlink()
    fffs.convert(source, tmp_path / "y.bag", column="image", warn=lambda _: None)
    assert records_of(tmp_path / "y.bag") == [row["image"] for row in ROWS]


@pytest.mark.parametrize("kind", ["zstd", "gz"])
def test_the_cache_of_a_set_of_several_writers(tmp_path: Path, kind: str) -> None:
    source = merge_mds(tmp_path / "x", lambda folder: compress_mds(folder, kind, keep_raw=True))
    for compressed in source.glob("*/*.mds.*"):
        if compressed.stem != "shard.00002.mds":
            compressed.unlink()
    assert convert(source, tmp_path / "y.ffr").source == "mds"
    fffs.convert(source, tmp_path / "y.bag", column="image", warn=lambda _: None)
    assert records_of(tmp_path / "y.bag") == [row["image"] for row in ROWS * 2]


@pytest.mark.parametrize("kind", ["br", "br:11", "snappy"])
def test_other_compressions_are_refused_unless_the_shard_is_there(tmp_path: Path, kind: str) -> None:
    name = f"shard.00000.mds.{kind.partition(':')[0]}"
    zip_data = {"basename": name, "bytes": 7, "hashes": {}}
    source = write_mds(tmp_path / "x", compression=kind, zip_data=zip_data)
    (source / name).write_bytes(b"x" * 7)
    convert(source, tmp_path / "y.ffr")
    (source / "shard.00000.mds").unlink()
    with pytest.raises(FormatError, match=rf"compressed with '{kind[:2]}\w*' are not read; .*StreamingData") as caught:
        convert(source, tmp_path / "z.ffr")
    assert "\n" not in str(caught.value)
    assert left_in(tmp_path) == ["x", "y.ffr"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"zip_data": {"basename": "../outside.zstd", "bytes": 1}}, "outside of the folder"),
        ({"zip_data": {"basename": "/etc/passwd", "bytes": 1}}, "outside of the folder"),
        ({"zip_data": {"basename": 7, "bytes": 1}}, "outside of the folder"),
        ({"zip_data": {"basename": "\ud800", "bytes": 1}}, "damaged"),
        ({"zip_data": {"basename": "shard.00001.mds.zstd", "bytes": 1}}, "several times"),
        ({"zip_data": {"basename": "shard.00000.mds", "bytes": 1}}, "several times"),
        ({"zip_data": {"basename": "shard.00000.mds.zstd", "bytes": 1}}, r"has [0-9]+ bytes, and not 1, as index.json"),
        ({"zip_data": {"basename": "shard.00000.mds.zstd", "bytes": -1}}, "damaged"),
        ({"zip_data": {"basename": "shard.00000.mds.zstd"}}, "damaged"),
        ({"zip_data": None}, "damaged"),
        ({"compression": 7}, "damaged"),
        ({"compression": ["zstd"]}, "damaged"),
    ],
)
def test_an_index_that_lies_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    source = compress_mds(tmp_path / "x", "zstd", **change)
    with pytest.raises(FormatError, match=message) as caught:
        convert(source, tmp_path / "y.ffr")
    assert str(source) in str(caught.value)
    assert left_in(tmp_path) == ["x"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_bomb_takes_little_memory(tmp_path: Path, kind: str) -> None:
    source = compress_mds(tmp_path / "x", kind)
    shard = replace_shard(source, COMPRESS[kind](bytes(32 << 20)))
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=r"has more than the [0-9]+ bytes that the index lists") as caught:
            convert(source, tmp_path / "y.ffr")
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert str(caught.value).startswith(f"{shard}: ")


def test_a_shard_that_is_listed_with_gigabytes_is_refused_before_it_is_read(tmp_path: Path) -> None:
    source = compress_mds(tmp_path / "x", "zstd")
    replace_shard(source, zstd.compress(b"x"), raw=(1 << 30) + 1)
    with pytest.raises(FormatError, match="more than 1 GiB when decompressed"):
        convert(source, tmp_path / "y.ffr")


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_shards_are_refused(tmp_path: Path, kind: str) -> None:
    source = compress_mds(tmp_path / "x", kind)
    shard = source / f"shard.00000.mds.{kind[:4].partition(':')[0]}"
    whole = shard.read_bytes()
    content = write_mds(tmp_path / "plain").joinpath("shard.00000.mds").read_bytes()
    changed = [
        (whole[:-1], "is truncated"),
        (b"", "is truncated"),
        (whole + b"\0", "other data after"),
        (whole + whole, "other data after"),
        (COMPRESS[kind](content[:-1]), "bytes when decompressed, and not"),
        (COMPRESS[kind](content + b"x"), "more than the"),
        (b"\xff" + whole[1:], "is damaged"),
        (content, "is damaged"),
    ]
    for data, message in changed:
        replace_shard(source, data)
        with pytest.raises(FormatError, match=message) as caught:
            convert(source, tmp_path / "y.ffr")
        assert str(caught.value).startswith(f"{shard}: ")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["gz", "bz2:1"])
def test_a_changed_bit_is_found_by_the_checksum_of_the_compression(tmp_path: Path, kind: str) -> None:
    source = compress_mds(tmp_path / "x", kind)
    shard = source / f"shard.00000.mds.{kind[:3].partition(':')[0]}"
    whole = shard.read_bytes()
    for at in range(12, len(whole), max(len(whole) // 25, 1)):
        shard.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises(FffsError):
            fffs.convert(source, tmp_path / "y.bag", column="image", warn=lambda _: None)


def test_the_library_that_zstd_needs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = compress_mds(tmp_path / "x", "zstd")
    monkeypatch.setitem(sys.modules, ZSTD, None)
    importlib.import_module("fffs.granular.optional").library.cache_clear()
    with pytest.raises(UsageError, match=r"zstd needs .*zstd, which is not installed: pip install"):
        convert(source, tmp_path / "y.ffr")


def test_a_table_of_samples_takes_little_more_memory_than_its_bytes(tmp_path: Path) -> None:
    count = 4 << 20
    source = compress_mds(tmp_path / "x", "zstd", samples=count)
    size = 4 * (count + 2)
    replace_shard(source, zstd.compress(bytes(size)), raw=size)
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="its table of samples is damaged"):
            fffs.convert(source, tmp_path / "y.ffr", warn=lambda _: None)
        assert tracemalloc.get_traced_memory()[1] < 4 * size
    finally:
        tracemalloc.stop()
