"""Sources of every kind at URLs: converted, listed, verified and mounted."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from inside import FrameError, expand_sources, long_reads, object_client, scanned_file
from mounting import Mounts
from object_server import ObjectServer
from weed import Weed, cloud, weed

import fffs
import fffs.tfrecord
from fffs.errors import FormatError, SourceNotFoundError
from fffs.granular import BagReader, DatasetReader, DatasetWriter, ShardedDatasetReader, ShardedDatasetWriter
from fffs.ofrecord import OFRecordWriter
from fffs.tfrecord import TFRecordWriter

__all__ = ["cloud", "weed"]  # fixtures
MIB = 1 << 20


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    yield
    object_client._owner.end()


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fffs", *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False
    )


def put_tree(cloud: Weed, folder: Path, prefix: str) -> str:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            cloud.put(cloud.bucket, f"{prefix}/{path.relative_to(folder)}", path.read_bytes())
    return f"s3://{cloud.bucket}/{prefix}/"


RECORDS = [bytes([k % 251]) * (k * 37 % 5000) for k in range(3000)]


def _record_file(path: Path) -> None:
    with fffs.FileWriter(path.with_name("a.ffr"), len(RECORDS)) as writer:
        for record in RECORDS:
            writer.write_one(record)
    if path.suffix != ".ffr":
        fffs.convert(path.with_name("a.ffr"), path)


@pytest.mark.parametrize("name", ["a.ffr", "a.tfrecord", "part-0", "a.bag"])
def test_record_files_are_converted(cloud: Weed, tmp_path: Path, name: str) -> None:
    _record_file(tmp_path / name)
    cloud.put(cloud.bucket, f"s/{name}", (tmp_path / name).read_bytes())
    for target in ("b.ffr", "b.tfrecord", "b.bag"):
        fffs.convert(tmp_path / name, tmp_path / f"local-{target}")
        done = run("convert", f"s3://{cloud.bucket}/s/{name}", tmp_path / target, "--verify")
        assert (done.returncode, done.stderr) == (0, "")
        assert (tmp_path / target).read_bytes() == (tmp_path / f"local-{target}").read_bytes()


def test_parts_in_a_folder(cloud: Weed, tmp_path: Path) -> None:
    _record_file(tmp_path / "a.ffr")
    for kind in ("tfrecord", "ofrecord"):
        fffs.convert(tmp_path / "a.ffr", tmp_path / kind, to=kind, parts=4)
        url = put_tree(cloud, tmp_path / kind, f"parts-{kind}")
        with fffs.FileReader(url) as reader:
            assert reader.n == len(RECORDS)
            assert bytes(reader.read_one(2999)) == RECORDS[2999]
        assert run("convert", url, tmp_path / f"{kind}.ffr", "--verify").returncode == 0
        assert (tmp_path / f"{kind}.ffr").read_bytes() == (tmp_path / "a.ffr").read_bytes()
    assert len(fffs.tfrecord.expand_shards(f"s3://{cloud.bucket}/parts-tfrecord/tfrecord@4.tfrecord")) == 4
    with pytest.raises(SourceNotFoundError):
        fffs.convert(f"s3://{cloud.bucket}/parts-tfrecord/none@4", tmp_path / "none.ffr")


def test_an_object_and_a_folder_of_the_same_name_are_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [("d/a.ffr", 1, '"x"'), ("d/b.ffr", 1, '"y"'), ("d/a.ffr/", 0, "")]
    monkeypatch.setattr(object_client, "list_objects", lambda folder, delimiter: iter(found))
    assert expand_sources("s3://bucket/d/") == ["s3://bucket/d/a.ffr", "s3://bucket/d/b.ffr"]


@pytest.mark.parametrize("layout", ["v1", "v3"])
def test_data_sets(cloud: Weed, tmp_path: Path, mounts: Mounts, layout: str) -> None:
    spec = {"image": "bytes", "label": "int"}
    rows = [{"image": bytes([k]) * k, "label": k} for k in range(40)]
    with DatasetWriter(tmp_path / "one", spec, layout=layout) as writer:
        for row in rows:
            writer.append(row)
    with ShardedDatasetWriter(tmp_path / "many", spec, shard_size=600, layout=layout) as writer:
        for row in rows:
            writer.append(row)
    for kind, name in ((DatasetReader, "one"), (ShardedDatasetReader, "many")):
        url = put_tree(cloud, tmp_path / name, f"set-{layout}/{name}")
        with kind(url) as reader, fffs.open(url) as opened:
            assert [reader[k] for k in range(40)] == rows
            assert type(opened) is kind
        assert run("ls", url, "000000").stdout == "image.bin\nlabel.bin\n"
        assert run("cat", url, "000007/image.bin").stdout == "\7" * 7
        assert run("verify", url).returncode == 0
        assert run("info", url).returncode == 0
        assert run("convert", url, tmp_path / f"{name}.ffr", "--verify").returncode == 0
        point = mounts(url)  # type: ignore[arg-type]
        assert (point / "000009" / "image.bin").read_bytes() == bytes([9]) * 9
    assert run("convert", f"s3://{cloud.bucket}/set-{layout}/many/", tmp_path / "copy").returncode == 0
    with DatasetReader(tmp_path / "copy") as reader:
        assert [reader[k] for k in range(40)] == rows


def test_bags(cloud: Weed, tmp_path: Path) -> None:
    _record_file(tmp_path / "a.bag")
    cloud.put(cloud.bucket, "s/a.bag", (tmp_path / "a.bag").read_bytes())
    with BagReader(f"s3://{cloud.bucket}/s/a.bag") as reader:
        assert reader[[5, 2999, 0]] == [RECORDS[5], RECORDS[2999], RECORDS[0]]
    assert run("verify", f"s3://{cloud.bucket}/s/a.bag").returncode == 0
    fffs.convert(tmp_path / "a.ffr", tmp_path / "three.bag", layout="v3")
    for path in tmp_path.glob("three*"):
        cloud.put(cloud.bucket, f"s/{path.name}", path.read_bytes())
    with BagReader(f"s3://{cloud.bucket}/s/three.bag") as reader:
        assert reader.layout == "v3"
        assert reader[2999] == RECORDS[2999]


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.zip"])
def test_archives(cloud: Weed, tmp_path: Path, name: str) -> None:
    noise = np.random.default_rng(5).bytes(12 * MIB)
    files = {f"d{k % 7}/{k}": noise[k : k + k * 700] for k in range(400)} | {"large": noise}
    if name.endswith(".zip"):
        with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED) as archive:
            for path, data in files.items():
                archive.writestr(path, data)
    else:
        with tarfile.open(tmp_path / name, "w:gz" if name.endswith("gz") else "w") as archive:
            for path, data in files.items():
                info = tarfile.TarInfo(path)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    cloud.put(cloud.bucket, f"s/{name}", (tmp_path / name).read_bytes())
    done = run("convert", f"s3://{cloud.bucket}/s/{name}", tmp_path / "far.ffr", "--verify")
    assert (done.returncode, done.stderr) == (0, "")
    fffs.convert(tmp_path / name, tmp_path / "near.ffr")
    assert (tmp_path / "far.ffr").read_bytes() == (tmp_path / "near.ffr").read_bytes()


# ---------------------------------------------------------------- scanning


@pytest.fixture
def small_requests(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(scanned_file, "_REQUEST", 16384)
    return 16384


@pytest.mark.parametrize("writer", [TFRecordWriter, OFRecordWriter])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.usefixtures("small_requests")
def test_an_index_is_the_same_wherever_requests_end(
    server: ObjectServer, tmp_path: Path, writer: type, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    most, count = [(40, 80), (9000, 80), (150_000, 40), (900_000, 10)][seed]
    sizes = [*rng.integers(1, most, count).tolist(), 1, 131_060 + seed, 2]
    with writer(tmp_path / "part-0") as file:
        for size in sizes:
            file.write_one(rng.bytes(size))
    url = server.put("part-0", (tmp_path / "part-0").read_bytes())
    with fffs.FileReader(url) as far, fffs.FileReader(tmp_path / "part-0") as near:
        assert far.n == near.n == len(sizes)
        numbers = list(range(far.n))
        assert [bytes(r) for r in far.read(numbers)] == [bytes(r) for r in near.read(numbers)]


def test_a_scan_makes_few_requests_and_its_index_is_kept(server: ObjectServer, tmp_path: Path) -> None:
    with TFRecordWriter(tmp_path / "a.tfrecord") as file:
        for k in range(30_000):
            file.write_one(bytes(k % 999))
    url = server.put("a.tfrecord", (tmp_path / "a.tfrecord").read_bytes())
    with fffs.FileReader(url) as reader:
        assert reader.n == 30_000
    assert len([r for r in server.requests if r.path == "/a.tfrecord"]) < 8
    server.requests.clear()
    with fffs.FileReader(url) as reader:
        assert bytes(reader.read_one(29_999)) == bytes(29_999 % 999)
    assert sum(min(r.end, 15 * MIB) - r.start for r in server.requests if r.path == "/a.tfrecord") < MIB
    server.objects["/a.tfrecord"] = server.objects["/a.tfrecord"][: 16 * 1024]
    with pytest.raises(FrameError, match="truncated"):
        fffs.FileReader(url)


@pytest.mark.usefixtures("small_requests")
def test_damaged_frames(server: ObjectServer, tmp_path: Path) -> None:
    with TFRecordWriter(tmp_path / "a.tfrecord") as file:
        for _ in range(300):
            file.write_one(bytes(1000))
    good = (tmp_path / "a.tfrecord").read_bytes()
    for data in (good[:-1], good[:-20], good[:200_000], good[:150_000] + b"\1" * 5000 + good[155_000:]):
        (tmp_path / "a.tfrecord").write_bytes(data)
        with pytest.raises(FormatError) as near:
            fffs.FileReader(tmp_path / "a.tfrecord")
        url = server.put("a.tfrecord", data)
        with pytest.raises(FormatError) as far:
            fffs.FileReader(url)
        assert str(far.value).partition(": record")[2] == str(near.value).partition(": record")[2]


@pytest.mark.usefixtures("small_requests")
def test_progress_of_a_scan_is_reported(server: ObjectServer, tmp_path: Path) -> None:
    with TFRecordWriter(tmp_path / "a.tfrecord") as file:
        for _ in range(300):
            file.write_one(bytes(1000))
    url, size = (
        server.put("a.tfrecord", (tmp_path / "a.tfrecord").read_bytes()),
        (tmp_path / "a.tfrecord").stat().st_size,
    )
    reports: list[tuple[str, int, int]] = []
    long_reads.set_report(lambda *report: reports.append(report))
    try:
        fffs.FileReader(url).close()
    finally:
        long_reads.set_report(None)
    assert reports == [(url, min(131072 * k, size), size) for k in range(1, 4)]


def test_a_stream_of_an_object(server: ObjectServer, tmp_path: Path) -> None:
    with TFRecordWriter(tmp_path / "a.tfrecord") as file:
        for record in RECORDS:
            file.write_one(record)
    url = server.put("a.tfrecord", (tmp_path / "a.tfrecord").read_bytes())
    assert list(fffs.tfrecord.read(url)) == RECORDS
    assert len(server.requests) < 5
