"""The objects in a folder of a store become a set of packs, on any executor."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from inside import object_client, object_folder
from set_sources import files_in_pack, files_of
from weed import Weed, cloud, weed

import fffs
from fffs.errors import FormatError, SourceChangedError, SourceNotFoundError, UsageError

__all__ = ["cloud", "weed"]  # fixtures


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield
    object_client._owner.end()


@pytest.fixture(scope="module")
def objects(weed: Weed) -> dict[str, bytes]:
    """Objects below ``parts/``, in four folders of equal size, and two others."""
    files = {f"class{k}/{j:02} ü+%2F.bin": bytes([k, j]) * 1000 for k in range(4) for j in range(12)}
    files |= {"class1-notes": b"a name that sorts between", "empty": b""}
    for path, data in files.items():
        weed.put(weed.bucket, f"parts/{path}", data)
    return files


def listed(*keys: str) -> list[Any]:
    return [object_client.ListedObject(key, 10, '"e"', 0) for key in keys]


def test_every_executor_writes_the_same_bytes(cloud: Weed, objects: dict[str, bytes], tmp_path: Path) -> None:
    url = f"s3://{cloud.bucket}/parts/"
    with ThreadPoolExecutor(3) as threads:
        summary = fffs.pack_folder(url, tmp_path / "threads", parts=4, executor=threads)
    assert summary == (len(objects), sum(map(len, objects.values())))
    (tmp_path / "processes").mkdir()
    fffs.pack_folder(url, tmp_path / "processes" / "threads", parts=4, executor="processes:2")
    assert len(files_of(tmp_path / "threads")) == 4
    assert files_of(tmp_path / "threads") == files_of(tmp_path / "processes" / "threads")
    assert files_in_pack(tmp_path / "threads") == objects
    fffs.pack_folder(url, tmp_path / "one.ffr")
    assert files_in_pack(tmp_path / "one.ffr") == objects


def test_folders_stay_together(cloud: Weed, objects: dict[str, bytes], tmp_path: Path) -> None:
    plan = fffs.plan_pack(f"s3://{cloud.bucket}/parts/", tmp_path / "set", 4)
    plan.commit([task.run() for task in plan.tasks])
    for part in sorted((tmp_path / "set").iterdir()):
        folders = {path.partition("/")[0] for path in files_in_pack(part) if "/" in path}
        assert len(folders) == 1
    assert sum(task.names for task in plan.tasks) == len(objects)


def test_each_command(cloud: Weed, objects: dict[str, bytes], tmp_path: Path) -> None:
    def run(*arguments: object) -> str:
        command = [sys.executable, "-m", "fffs", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout

    there, url = tmp_path / "set", f"s3://{cloud.bucket}/parts/"
    assert "in 2 tasks" in run("plan", "pack", "--parts", 2, url, there)
    for k in range(2):
        run("plan", "run", there, "--task", k)
    run("plan", "commit", there)
    assert files_in_pack(there) == objects
    assert f"{len(objects)} files in 3 parts" in run("pack", "--parts", 3, url, tmp_path / "other")
    assert files_in_pack(tmp_path / "other") == objects


def test_an_object_that_changes_is_named(cloud: Weed, tmp_path: Path) -> None:
    for name in "abcd":
        cloud.put(cloud.bucket, f"change/{name}", name.encode() * 5000)
    url = f"s3://{cloud.bucket}/change/"
    plan = fffs.plan_pack(url, tmp_path / "set", 4)
    results = [task.run() for task in plan.tasks[:2]]
    cloud.put(cloud.bucket, "change/c", b"other")
    cloud.put(cloud.bucket, "change/e", b"added later")
    with pytest.raises(SourceChangedError, match="s3://test/change/c: changed while it was packed"):
        plan.tasks[2].run()
    cloud.delete(cloud.bucket, "change/c")
    with pytest.raises(SourceChangedError, match="s3://test/change/c: vanished while it was packed"):
        plan.tasks[2].run()
    results.append(plan.tasks[3].run())
    assert [result.records for result in results] == [1, 1, 1]
    plan.abort()


def test_parts_whose_objects_are_the_same_stay(cloud: Weed, tmp_path: Path) -> None:
    for name in "abcd":
        cloud.put(cloud.bucket, f"again/{name}", name.encode() * 5000)
    url = f"s3://{cloud.bucket}/again/"
    plan = fffs.plan_pack(url, tmp_path / "set", 4)
    for task in plan.tasks:
        task.run()
    cloud.put(cloud.bucket, "again/c", b"C" * 5000)
    after = fffs.plan_pack(url, tmp_path / "set", 4)
    assert [result is None for result in after.results()] == [False, False, True, False]
    with pytest.raises(UsageError, match="not there any more"):
        plan.tasks[2].run()
    after.tasks[2].run()
    after.commit()
    assert files_in_pack(tmp_path / "set")["c"] == b"C" * 5000


def test_a_list_that_is_damaged(cloud: Weed, objects: dict[str, bytes], tmp_path: Path) -> None:
    plan = fffs.plan_pack(f"s3://{cloud.bucket}/parts/", tmp_path / "set", 2)
    kept = tmp_path / ".set.fffs-plan" / "inputs" / "00001"
    whole = kept.read_bytes()
    for damaged in (whole[:-1], whole[whole.index(b"\n") + 1 :], whole.replace(b"parts/", b"other/", 1), b""):
        kept.write_bytes(damaged)
        with pytest.raises(FormatError, match="inputs/00001: this list of objects is damaged"):
            plan.tasks[1].run()
    kept.unlink()
    with pytest.raises(SourceNotFoundError, match="inputs/00001: is missing; make a new plan"):
        plan.tasks[1].run()
    # The same call writes the lists that are missing.
    fffs.pack_folder(f"s3://{cloud.bucket}/parts/", tmp_path / "set", parts=2)
    assert files_in_pack(tmp_path / "set") == objects


def test_what_cannot_be_packed(
    cloud: Weed, objects: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SourceNotFoundError, match="s3://test/nothing/: no objects in this folder"):
        fffs.plan_pack(f"s3://{cloud.bucket}/nothing/", tmp_path / "set", 2)
    with pytest.raises(UsageError, match="write s3://test/parts/"):
        fffs.plan_pack(f"s3://{cloud.bucket}/parts", tmp_path / "set", 2)
    with pytest.raises(UsageError, match="cannot be listed"):
        fffs.plan_pack("https://127.0.0.1:1/parts/", tmp_path / "set", 2)
    with pytest.raises(UsageError, match="memory://x/: only local folders, and those of s3"):
        fffs.plan_pack("memory://x/", tmp_path / "set", 2)
    names = listed("r/a", "r/a-b", "r/a-b.c", "r/a/b")  # the object a is in another part than what is in the folder a
    monkeypatch.setattr(object_folder, "list_entries", lambda folder: iter(names))
    with pytest.raises(UsageError, match="s3://test/r/a: an object and a folder have this name"):
        fffs.plan_pack(f"s3://{cloud.bucket}/r/", tmp_path / "set", 4)
    assert list(tmp_path.iterdir()) in ([], [tmp_path / "state"])


def test_a_store_that_does_not_list_in_order(
    cloud: Weed, objects: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    list_entries = object_folder.list_entries
    monkeypatch.setattr(object_folder, "list_entries", lambda folder: iter(list(list_entries(folder))[::-1]))
    fffs.pack_folder(f"s3://{cloud.bucket}/parts/", tmp_path / "set", parts=5)
    assert files_in_pack(tmp_path / "set") == objects
