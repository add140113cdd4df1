"""Sets of packs whose parts are written into a store."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import once
from inside import (
    NewObject,
    lease,
    list_entries,
    object_client,
    parse_url,
    part_sender,
    place_of,
    plan_objects,
    read_object,
    remove_plan,
)
from set_sources import files_in_pack, files_of, small_folder
from weed import Weed, cloud, weed

import fffs
from fffs.errors import FormatError, SourceNotFoundError, UsageError, WriteError

__all__ = ["cloud", "weed"]  # fixtures


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield
    object_client._owner.end()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with four folders of five files."""
    return small_folder(tmp_path)


@pytest.fixture
def target(cloud: Weed, request: pytest.FixtureRequest) -> str:
    """The URL of a folder of this test."""
    return f"s3://{cloud.bucket}/{re.sub('[^a-z]', '-', request.node.name)}/photos"


def keys_in(target: str) -> set[str]:
    folder = parse_url(f"{target}/")
    return {entry.key.removeprefix(folder.key) for entry in list_entries(folder)}


def on_disk(source: Path) -> dict[str, bytes]:
    return {str(path.relative_to(source)): path.read_bytes() for path in source.rglob("*.jpg")}


PARTS = {f"photos-0000{k}-of-00004.ffr" for k in range(4)}


@pytest.mark.parametrize("slash", ["", "/"], ids=["name", "slash"])
def test_parts_in_a_store_are_those_on_a_disk(source: Path, target: str, tmp_path: Path, slash: str) -> None:
    summary = fffs.pack_folder(source, target + slash, parts=4, executor="processes:2")
    assert summary == (20, 80_000)
    assert keys_in(target) == PARTS | {"fffs-parts.json"}
    assert files_in_pack(f"{target}/") == on_disk(source)
    (tmp_path / "set").mkdir()
    fffs.pack_folder(source, tmp_path / "set" / "photos", parts=4)
    for name, data in files_of(tmp_path / "set" / "photos").items():
        assert read(f"{target}/{name}") == data
    manifest = json.loads(read(f"{target}/fffs-parts.json"))
    assert [Path(part["path"]).name for part in manifest["parts"]] == sorted(PARTS)
    assert sum(part["records"] for part in manifest["parts"]) == 20
    with pytest.raises(UsageError, match="already exists and is not empty"):
        fffs.pack_folder(source, target, parts=4)


def read(url: str) -> bytes:
    data = read_object(url)
    assert data is not None
    return data


def test_a_set_counts_when_it_is_committed(source: Path, target: str) -> None:
    plan = fffs.plan_pack(source, target, 4)
    results = [task.run() for task in plan.tasks]
    with pytest.raises(FormatError, match=r"its parts are still being written; or run fffs plan commit s3://"):
        fffs.PackedFolder(f"{target}/")
    plan.commit(results)
    assert files_in_pack(f"{target}/") == on_disk(source)
    with pytest.raises(UsageError, match="this plan is not there any more"):
        plan.commit(results)
    with pytest.raises(UsageError, match="this plan is not there any more"):
        plan.tasks[0].run()
    plan.abort()
    assert keys_in(target) == PARTS | {"fffs-parts.json"}


def test_each_command(source: Path, target: str) -> None:
    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "fffs", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert "in 4 tasks" in run("plan", "pack", "--parts", 4, source, target).stdout
    for k in range(3):
        assert run("plan", "run", target, "--task", k).returncode == 0
    missing = run("plan", "commit", target)
    assert missing.returncode
    assert "photos-00003-of-00004.ffr: part 3 is missing" in missing.stderr
    assert run("plan", "run", target).returncode == 0
    assert "20 files in 4 parts" in run("plan", "commit", target).stdout
    assert run("info", f"{target}/").stdout.count("photos-*-of-00004.ffr (4 parts") == 1
    assert files_in_pack(f"{target}/") == on_disk(source)


def test_what_is_complete_stays(source: Path, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = fffs.plan_pack(source, target, 4)
    for task in plan.tasks[:2]:
        task.run()
    times = {entry.key: entry.mtime_ns for entry in list_entries(parse_url(f"{target}/")) if entry.key.endswith(".ffr")}
    assert len(times) == 2
    with pytest.raises(UsageError, match="has parts for another source"):
        fffs.plan_pack(source, target, 3)
    time.sleep(1.1)  # the store's times are whole seconds
    fffs.pack_folder(source, target, parts=4)
    now = {entry.key: entry.mtime_ns for entry in list_entries(parse_url(f"{target}/"))}
    assert {key: now[key] for key in times} == times
    assert files_in_pack(f"{target}/") == on_disk(source)


def test_a_late_task_of_an_older_plan_replaces_no_part(source: Path, target: str) -> None:
    old = fffs.plan_pack(source, target, 2)
    name = next(path for path in sorted(source.rglob("*.jpg")))

    def finish_another() -> None:
        name.write_bytes(name.read_bytes()[::-1].replace(b"\0", b"x") + b"more")
        fffs.pack_folder(source, target, parts=2)

    with pytest.raises(UsageError, match="this plan is not there any more"):
        old.tasks[0].run(progress=once(finish_another))
    assert files_in_pack(f"{target}/") == on_disk(source)


def test_a_newer_plan_with_fewer_parts_leaves_none_of_an_older_one(source: Path, target: str) -> None:
    plan = fffs.plan_pack(source, target, 30)
    for task in plan.tasks[:2]:
        task.run()
    for path in source.glob("day3/*"):
        path.unlink()
    fffs.pack_folder(source, target, parts=30)
    assert len(keys_in(target)) < len(plan.tasks) + 1
    assert files_in_pack(f"{target}/") == on_disk(source)


def test_abort_and_restart_leave_nothing_of_an_old_plan(source: Path, target: str) -> None:
    plan = fffs.plan_pack(source, target, 4)
    for task in plan.tasks:
        task.run()
    fffs.pack_folder(source, target, parts=3, restart=True)
    assert keys_in(target) == {f"photos-0000{k}-of-00003.ffr" for k in range(3)} | {"fffs-parts.json"}
    plan = fffs.plan_pack(source, f"{target}-2", 4)
    plan.tasks[1].run()
    plan.abort()
    assert keys_in(f"{target}-2") == set()


def test_a_set_without_a_plan_is_not_removed(cloud: Weed, source: Path, target: str, tmp_path: Path) -> None:
    """As one that was packed on a disk and then copied to the store."""
    (tmp_path / "set").mkdir()
    fffs.pack_folder(source, tmp_path / "set" / "photos", parts=4)
    for name, data in files_of(tmp_path / "set" / "photos").items():
        cloud.put(cloud.bucket, f"{parse_url(target).key}/{name}", data)
    with pytest.raises(SourceNotFoundError, match="there is no plan for it"):
        remove_plan(target)
    with pytest.raises(UsageError, match="already exists and is not empty"):  # it came while a plan was made
        place_of(target).create("", "", "", restart=True, parts=())
    assert files_in_pack(f"{target}/") == on_disk(source)


def test_an_empty_folder_of_a_plan_is_none(cloud: Weed, source: Path, target: str, tmp_path: Path) -> None:
    """This store, as others that have folders, keeps it when the plan is gone."""
    plan = fffs.plan_pack(source, target, 2)
    plan.tasks[0].run()
    plan.abort()
    (tmp_path / "set").mkdir()
    fffs.pack_folder(source, tmp_path / "set" / "photos", parts=2)
    for name, data in files_of(tmp_path / "set" / "photos").items():
        cloud.put(cloud.bucket, f"{parse_url(target).key}/{name}", data)
    with pytest.raises(UsageError, match="already exists and is not empty"):
        fffs.plan_pack(source, target, 2)
    with pytest.raises(SourceNotFoundError, match="there is no plan for it"):
        remove_plan(target)
    assert files_in_pack(f"{target}/") == on_disk(source)


def test_what_cannot_be_a_target(cloud: Weed, source: Path, target: str) -> None:
    cloud.put(cloud.bucket, f"{parse_url(target).key}/other", b"somebody's")
    with pytest.raises(UsageError, match=r"already exists and is not empty \(it has other\)"):
        fffs.plan_pack(source, target, 4)
    with pytest.raises(UsageError, match="lies inside the folder that is packed"):
        fffs.plan_pack(f"s3://{cloud.bucket}/a/", f"s3://{cloud.bucket}/a/b", 4)
    for url in ("https://127.0.0.1/x", "memory://x"):
        with pytest.raises(UsageError, match="parts can only be written to a local folder, or to s3://"):
            fffs.plan_pack(source, url, 4)
    assert keys_in(target) == {"other"}


def large_items() -> list[bytes]:
    return [bytes([k]) * (3 << 20) for k in range(4)]


def test_a_part_that_is_sent_before_its_result_is_made(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of what is sent, with the header of the file, is given back."""
    put = part_sender.PartSender.put

    def send(self: Any, *where: int) -> None:
        put(self, *where)
        self.finish()

    monkeypatch.setattr(part_sender.PartSender, "put", send)
    plan = fffs.plan_dump(large_items, target, 1)
    plan.commit([task.run() for task in plan.tasks])
    with fffs.FileReader(f"{target}/") as reader:
        assert list(map(bytes, reader.read(range(4)))) == large_items()


# ---------------------------------------------------------------- the lock

HOLDING = """
import time
from fffs.cluster.lease import lease

with lease({url!r}, "target"):
    print(".", flush=True)
    time.sleep(60)
"""


def test_without_proc_no_owner_is_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: str) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "readlink", missing)
    dead = {**lease._here(), "pid": 2**22}  # more than there can be
    assert dead["space"] == ""
    assert not lease._has_ended(json.dumps(dead).encode())


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Owners renew their locks often."""
    for name, seconds in {"RENEW": 0.1, "LIMIT": 0.5, "_PAUSE": 0.05, "_SETTLE": 0.5}.items():
        monkeypatch.setattr(lease, name, seconds)


def test_a_second_driver_is_refused(source: Path, target: str, quick: None) -> None:
    with lease.lease(f"{target}/.fffs-plan-driver", target):
        for act in (
            lambda: fffs.plan_pack(source, target, 4),
            lambda: fffs.pack_folder(source, target, parts=4),
        ):
            with pytest.raises(WriteError, match=r"another process is writing its parts \(process \d+ of "):
                act()
    fffs.pack_folder(source, target, parts=4)
    assert keys_in(target) == PARTS | {"fffs-parts.json"}


def test_a_driver_that_was_killed_is_noticed(
    cloud: Weed, source: Path, target: str, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{target}/.fffs-plan-driver"
    program = HOLDING.format(url=url)
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    owner.stdout.read(1)
    owner.kill()
    owner.communicate()
    begin = time.monotonic()
    with monkeypatch.context() as patient:
        patient.setattr(lease, "LIMIT", 60)
        with lease.lease(url, target):
            assert time.monotonic() - begin < 30
    # One of another machine is waited for.
    cloud.put(cloud.bucket, parse_url(url).key, b'{"host": "elsewhere", "pid": 1}')
    begin = time.monotonic()
    with lease.lease(url, target):
        assert time.monotonic() - begin >= 0.5
    for other in (b"", b"\xff", b"[]", b'{"pid": "x"}'):
        cloud.put(cloud.bucket, parse_url(url).key, other)
        with lease.lease(url, target):
            pass
    assert keys_in(target) == set()


def with_parts(plan: fffs.PackPlan) -> fffs.PackPlan:
    """Write all parts of a plan."""
    for task in plan.tasks:
        task.run()
    return plan


def take_lock(cloud: Weed, source: Path, target: str, parts: int) -> fffs.PackPlan:
    """Plan with ``restart`` as another driver does after the lock of the first one has ended."""
    cloud.delete(cloud.bucket, parse_url(f"{target}/.fffs-plan-driver").key)
    return fffs.plan_pack(source, target, parts, restart=True)


@pytest.fixture
def suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    """No lock is renewed: what is deleted stays so."""
    monkeypatch.setattr(lease, "RENEW", 600.0)


def test_a_driver_that_lost_its_lock_removes_nothing_of_another(
    cloud: Weed, source: Path, target: str, tmp_path: Path, suspended: None
) -> None:
    """As one that was suspended for longer than its lock lasts."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_bytes(b"x" * 1000)
    plans: list[fffs.PackPlan] = []

    def take_over() -> None:
        plans.append(take_lock(cloud, tmp_path / "other", target, 1))
        plans[0].tasks[0].run()

    with pytest.raises(UsageError, match="this plan is not there any more"):
        fffs.pack_folder(source, target, parts=2, progress=once(take_over))
    plans[0].commit()
    assert files_in_pack(f"{target}/") == {"file": b"x" * 1000}


@pytest.mark.parametrize("moment", ["before the last look", "after the last look", "after the other one's commit"])
def test_a_driver_that_lost_its_lock_at_its_commit(
    moment: str,
    cloud: Weed,
    source: Path,
    target: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    suspended: None,
) -> None:
    """Its manifest is not that of the parts of the other one, which is not hindered."""

    def take_over(place: Any, name: str, mark: str, fingerprint: str) -> Any:
        monkeypatch.setattr(plan_objects._OpenObjects, "new_part", new_part)
        plans.append(take_lock(cloud, other, target, 2))
        if moment == "after the other one's commit":
            with_parts(plans[0])
            plans[0].commit()
        guarded = place.new_part(name, mark, fingerprint)
        return NewObject(f"{target}/{name}") if moment == "after the last look" else guarded

    other = small_folder(tmp_path / "other")
    (other / "day0" / "0.jpg").write_bytes(b"x" * 1000)
    plans: list[fffs.PackPlan] = []
    plan = with_parts(fffs.plan_pack(source, target, 2))
    new_part = plan_objects._OpenObjects.new_part
    monkeypatch.setattr(plan_objects._OpenObjects, "new_part", take_over)
    with pytest.raises(UsageError, match="this plan is not there any more"):
        plan.commit()
    if moment != "after the other one's commit":
        assert not any(key == "fffs-parts.json" for key in keys_in(target))
        with_parts(plans[0])
        plans[0].commit()
    assert files_in_pack(f"{target}/") == on_disk(other)


@pytest.mark.parametrize("is_guarded", [True, False])
@pytest.mark.parametrize("then", ["restart", "abort", "half", "all", "commit"])
def test_a_driver_that_lost_its_lock_at_its_commit_to_one_of_the_same_source(
    then: str,
    is_guarded: bool,
    cloud: Weed,
    source: Path,
    target: str,
    monkeypatch: pytest.MonkeyPatch,
    suspended: None,
) -> None:
    """The plans are equal. It does not say success for parts that were removed, and the other one can go on."""

    def take_over(place: Any, name: str, mark: str, fingerprint: str) -> Any:
        monkeypatch.setattr(plan_objects._OpenObjects, "new_part", new_part)
        guarded = place.new_part(name, mark, fingerprint)
        plans.append(take_lock(cloud, source, target, 2))
        if then == "abort":
            plans[0].abort()
        for task in plans[0].tasks[: {"half": 1, "all": 2, "commit": 2}.get(then, 0)]:
            task.run()
        if then == "commit":
            plans[0].commit()
        return guarded if is_guarded else NewObject(f"{target}/{name}")

    plans: list[fffs.PackPlan] = []
    plan = with_parts(fffs.plan_pack(source, target, 2))
    new_part = plan_objects._OpenObjects.new_part
    monkeypatch.setattr(plan_objects._OpenObjects, "new_part", take_over)
    if then == "all":
        plan.commit()
        with pytest.raises(UsageError, match="this plan is not there any more"):
            plans[0].commit()
    else:
        with pytest.raises(UsageError, match="this plan is not there any more"):
            plan.commit()
    if then == "abort":
        assert keys_in(target) == set()
        fffs.pack_folder(source, target, parts=2)
    if then in ("restart", "half"):
        assert "fffs-parts.json" not in keys_in(target)
        with_parts(plans[0])
        plans[0].commit()
    assert files_in_pack(f"{target}/") == on_disk(source)


def test_a_manifest_that_was_removed_with_the_plan_counts_for_no_other(
    cloud: Weed, source: Path, target: str, monkeypatch: pytest.MonkeyPatch, suspended: None
) -> None:
    """It came while another driver removed the plan, which then made an equal one, with all parts."""

    def take_over(output: Any) -> None:
        if not output.path.endswith("fffs-parts.json"):
            return commit(output)
        monkeypatch.setattr(NewObject, "commit", commit)
        plans.append(take_lock(cloud, source, target, 2))
        with_parts(plans[0])

    plans: list[fffs.PackPlan] = []
    plan = with_parts(fffs.plan_pack(source, target, 2))
    commit = NewObject.commit
    monkeypatch.setattr(NewObject, "commit", take_over)
    with pytest.raises(UsageError, match="this plan is not there any more"):
        plan.commit()
    plans[0].commit()
    assert files_in_pack(f"{target}/") == on_disk(source)


@pytest.mark.parametrize("moment", ["the state is gone", "its parts are gone"])
def test_a_manifest_that_comes_while_a_plan_is_removed(
    moment: str, cloud: Weed, source: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of a driver that lost its lock, and looked at the plan before it was removed."""

    def delete(place: Any, keys: Any, *arguments: Any) -> Any:
        delete_objects(place, keys, *arguments)
        if not late and keys[0].endswith("/state" if moment == "the state is gone" else ".ffr"):
            late.append(moment)
            cloud.put(cloud.bucket, parse_url(f"{target}/fffs-parts.json").key, b"{}")

    late: list[str] = []
    with_parts(fffs.plan_pack(source, target, 2))
    delete_objects = plan_objects.delete_objects
    monkeypatch.setattr(plan_objects, "delete_objects", delete)
    if moment == "the state is gone":
        with pytest.raises(UsageError, match=r"already exists and is not empty \(it has fffs-parts"):
            fffs.plan_pack(source, target, 2, restart=True)
    else:
        again = fffs.plan_pack(source, target, 2, restart=True)
        assert not any(key.startswith(("fffs-parts", "photos")) for key in keys_in(target))
        with_parts(again)
        again.commit()
    assert len(late) == 1
    assert files_in_pack(f"{target}/") == on_disk(source)


def lose_lock(cloud: Weed, target: str) -> None:
    """Have another driver take the lock, as of one that was suspended for long, which then notices it soon."""
    url = f"{target}/.fffs-plan-driver"
    cloud.put(cloud.bucket, parse_url(url).key, b'{"owner": "another"}')
    lease._held[url]._until = 0.0


@pytest.fixture
def noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has the lock looks at it soon."""
    monkeypatch.setattr(lease, "RENEW", 0.5)


@pytest.mark.parametrize("moment", ["after the look for a manifest", "after the list of parts"])
@pytest.mark.usefixtures("noticed")
def test_a_driver_that_lost_its_lock_while_it_removes_a_plan_deletes_nothing_more(
    moment: str, cloud: Weed, source: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one may have committed meanwhile, with parts of the same names."""

    def late(method: Any) -> Any:
        def asked(*arguments: Any) -> Any:
            found = method(*arguments)
            lose_lock(cloud, target)
            return found

        return asked

    plan = with_parts(fffs.plan_pack(source, target, 2))
    name = "is_in_place" if moment == "after the look for a manifest" else "names"
    monkeypatch.setattr(plan_objects.PlanObjects, name, late(getattr(plan_objects.PlanObjects, name)))
    with pytest.raises(WriteError, match="its lock was not renewed for 30 seconds, and another process may have taken"):
        plan.abort()
    assert {"photos-00000-of-00002.ffr", "photos-00001-of-00002.ffr"} <= keys_in(target)


def test_an_interrupt_of_a_removal_keeps_the_lock(
    cloud: Weed, source: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store may carry the request out later, when another driver has committed."""

    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    plan = with_parts(fffs.plan_pack(source, target, 2))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(plan_objects, "delete_objects", interrupted)
        plan.abort()
    assert ".fffs-plan-driver" in keys_in(target)
    plan.abort()  # waits for its end
    assert keys_in(target) == set()


@pytest.mark.usefixtures("noticed")
def test_a_driver_that_lost_its_lock_makes_no_plan(
    cloud: Weed, source: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tasks would replace the parts that another one has committed."""

    def make(place: Any) -> None:
        lose_lock(cloud, target)

    monkeypatch.setattr(plan_objects._OpenObjects, "make", make)
    with pytest.raises(WriteError, match="its lock was not renewed"):
        fffs.plan_pack(source, target, 2)
    assert not any(key.startswith(".fffs-plan/") for key in keys_in(target))


def test_a_manifest_of_another_set_is_not_replaced(cloud: Weed, source: Path, target: str) -> None:
    plan = with_parts(fffs.plan_pack(source, target, 2))
    key = parse_url(f"{target}/fffs-parts.json").key
    cloud.put(cloud.bucket, key, b"of another tool")
    with pytest.raises(UsageError, match=r"already exists: fffs-parts\.json is of another set"):
        plan.commit()
    assert read(f"{target}/fffs-parts.json") == b"of another tool"


def test_a_lock_that_was_taken_is_not_renewed(cloud: Weed, target: str, quick: None) -> None:
    url = f"{target}/.fffs-plan-driver"
    with lease.lease(url, target):
        cloud.put(cloud.bucket, parse_url(url).key, b'{"host": "elsewhere", "pid": 1, "owner": "another"}')
        time.sleep(0.5)
        assert b"another" in read(url)
    assert b"another" in read(url)
    assert not [thread for thread in threading.enumerate() if "_renew" in thread.name]


def test_drivers_at_the_same_time(target: str, quick: None) -> None:
    """One of them holds the lock at a time, whoever comes first."""
    holding: list[int] = []
    refused: list[Any] = []

    def drive(number: int) -> None:
        try:
            with lease.lease(f"{target}/.fffs-plan-driver", target):
                holding.append(number)
                assert len(holding) == 1
                time.sleep(0.3)
                holding.remove(number)
        except WriteError as error:
            refused.append(error)

    threads = [threading.Thread(target=drive, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) < 4
