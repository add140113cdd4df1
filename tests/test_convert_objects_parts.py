"""Record files and archives in stores become sets of parts, also in stores."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from archives import END, tar_file
from builders import record_file
from inside import list_entries, object_client, parse_url
from set_sources import files_of
from weed import Weed, cloud, weed

import fffs
from fffs.errors import FormatError, SourceChangedError, UsageError

__all__ = ["cloud", "weed"]  # fixtures

RECORDS = [bytes([k % 251]) * (k * 37 % 5000) for k in range(300)]


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield
    object_client._owner.end()


def put(cloud: Weed, path: Path, key: str) -> str:
    cloud.put(cloud.bucket, key, path.read_bytes())
    return f"s3://{cloud.bucket}/{key}"


def records_of(url: str) -> list[bytes]:
    with fffs.open(url) as reader:
        return [record.tobytes() for record in reader.read(range(reader.n))]


@pytest.mark.parametrize(("name", "to"), [("x.ffr", "tfrecord"), ("x.tfrecord", "ffrecord"), ("x.ffr", "ofrecord")])
def test_records_of_an_object_become_parts_in_a_store(cloud: Weed, tmp_path: Path, name: str, to: str) -> None:
    (tmp_path / "x.ffr").write_bytes(record_file(RECORDS))
    if name != "x.ffr":
        fffs.convert(tmp_path / "x.ffr", tmp_path / name)
    url, target = put(cloud, tmp_path / name, f"in/{to}/{name}"), f"s3://{cloud.bucket}/out/{to}"
    plan = fffs.plan_convert(url, target, 3, to=to)
    results = [task.run() for task in plan.tasks]
    assert plan.tasks[1].run() == results[1]  # it is recognised
    with pytest.raises(FormatError, match="still being written"):
        records_of(f"{target}/")
    plan.commit()
    assert records_of(f"{target}/") == RECORDS
    # Bytes are those of a local conversion.
    fffs.convert(tmp_path / "x.ffr", tmp_path / to, to=to, parts=3, warn=lambda _: None)
    local = files_of(tmp_path / to)
    assert [result.size for result in results] == [len(local[task.name]) for task in plan.tasks]
    # The set can be a source itself: the manifest is not one of its files.
    fffs.convert(f"{target}/", tmp_path / "back.ffr")
    assert (tmp_path / "back.ffr").read_bytes() == (tmp_path / "x.ffr").read_bytes()


def test_what_was_written_is_removed_by_abort(cloud: Weed, tmp_path: Path) -> None:
    (tmp_path / "x.ffr").write_bytes(record_file(RECORDS))
    for to in ("ofrecord", "tfrecord"):
        target = f"s3://{cloud.bucket}/aborted/{to}"
        plan = fffs.plan_convert(tmp_path / "x.ffr", target, 2, to=to)
        plan.tasks[0].run()
        plan.abort()
        assert not list(list_entries(parse_url(f"{target}/")))


def test_an_object_that_was_replaced_after_the_plan_is_named(cloud: Weed, tmp_path: Path) -> None:
    (tmp_path / "x.ffr").write_bytes(record_file(RECORDS))
    url = put(cloud, tmp_path / "x.ffr", "changing/x.ffr")
    plan = fffs.plan_convert(url, tmp_path / "set", 2, to="ffrecord")
    (tmp_path / "y.ffr").write_bytes(record_file(RECORDS[::-1]))
    put(cloud, tmp_path / "y.ffr", "changing/x.ffr")
    with pytest.raises(SourceChangedError, match=r"changing/x\.ffr: changed after the plan was made"):
        plan.tasks[0].run()


def test_archives_in_a_store_become_packs_in_a_store(cloud: Weed, tmp_path: Path) -> None:
    for k in range(4):
        data = tar_file(b"d/%d" % k, bytes([k]) * 5000) + END
        cloud.put(cloud.bucket, f"shards/data-{k:03}.tar", data)
    url, target = f"s3://{cloud.bucket}/shards/", f"s3://{cloud.bucket}/packed/data"
    with ThreadPoolExecutor(2) as pool:
        found = fffs.convert(url, target, from_="tar", parts=2, executor=pool)
    assert (found.items, found.parts) == (4, 2)
    with fffs.PackedFolder(f"{target}/") as pack:
        assert [bytes(pack.read_one(f"d/{k}")) for k in range(4)] == [bytes([k]) * 5000 for k in range(4)]
    with pytest.raises(UsageError, match="omit --verify"):
        fffs.plan_convert(url, f"{target}2", 2, from_="tar", verify=True)
