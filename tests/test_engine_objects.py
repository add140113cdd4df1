"""Records that Dask and Ray write into a store, and read from it."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import pytest
from inside import (
    lease,
    list_entries,
    load_plan,
    object_client,
    parse_url,
    place_of,
    plan_objects,
    read_object,
    record_parts,
    remove_plan,
)
from weed import Weed, cloud, weed

import fffs.dask
from fffs.errors import FormatError, SourceChangedError, SourceNotFoundError, UsageError, WriteError

__all__ = ["cloud", "weed"]  # fixtures

LARGE = 9 << 20  # bytes: more than one part of an upload


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with dask.config.set(scheduler="synchronous"):
        yield
    object_client._owner.end()


@pytest.fixture
def target(cloud: Weed, request: pytest.FixtureRequest) -> str:
    """The URL of a folder of this test."""
    return f"s3://{cloud.bucket}/{re.sub('[^a-z]', '-', request.node.name)}/rows"


def keys_in(target: str) -> list[str]:
    folder = parse_url(f"{target}/")
    return sorted(entry.key.removeprefix(folder.key) for entry in list_entries(folder))


def parts_in(target: str) -> list[int]:
    """Return the numbers of the parts of a set that is complete, all of one job."""
    names = keys_in(target)
    assert names.pop(0) == "fffs-parts.json"
    found = [re.fullmatch(r"rows-([0-9]{8})-([0-9a-f]{8})\.ffr", name) for name in names]
    assert len({match[2] for match in found if match}) == 1
    return [int(match[1]) for match in found if match]


def records_of(target: str) -> list[bytes]:
    with fffs.FileReader(f"{target}/") as reader:
        return [bytes(record) for record in reader.read(range(reader.n))]


def rows_of(target: str) -> dict[str, bytes]:
    return dict(fffs.dask.read(f"{target}/").compute())


def bag_of(items: list[Any], npartitions: int) -> Any:
    return dask.bag.from_sequence(items, npartitions=npartitions)


def test_a_bag_becomes_records(target: str) -> None:
    items = [bytes([k]) * k for k in range(40)]
    bag = bag_of(items, 8).filter(lambda item: not 5 <= len(item) < 10)
    assert fffs.dask.write_records(bag, f"{target}/", scheduler="threads") == 35
    assert parts_in(target) == [0, 2, 3, 4, 5, 6, 7]
    assert records_of(target) == items[:5] + items[10:]
    manifest = json.loads(read_object(f"{target}/fffs-parts.json") or b"")
    assert [part["records"] for part in manifest["parts"]] == [5] * 7
    assert [part["path"].rpartition("/")[2] for part in manifest["parts"]] == keys_in(target)[1:]


def test_a_bag_becomes_packs_that_are_one_set(target: str, tmp_path: Path) -> None:
    """Which is converted to one pack."""
    rows = {f"a/{k}": b"%d" % k for k in range(20)} | {"large": bytes(LARGE)}
    assert fffs.dask.write_packed(bag_of(list(rows.items()), 3), target) == 21
    assert rows_of(target) == rows
    fffs.convert(f"{target}/", tmp_path / "one.ffr")
    with fffs.PackedFolder(tmp_path / "one.ffr") as packed:
        assert packed.num_files() == 21


def test_paths_in_two_partitions_leave_nothing(target: str) -> None:
    with pytest.raises(UsageError, match="1 row with a path that is in another partition, too"):
        fffs.dask.write_packed(bag_of([("a", b"1"), ("b", b"2"), ("a", b"3")], 3), target)
    assert keys_in(target) == []


def test_a_partition_that_fails_leaves_nothing(cloud: Weed, target: str) -> None:
    def fail(k: int) -> bytes:
        if k == 2:
            raise ValueError("item 2")
        return bytes(LARGE)

    with pytest.raises(ValueError, match="item 2"):
        fffs.dask.write_records(dask.bag.range(3, npartitions=3).map(fail), target)
    with pytest.raises(UsageError, match="there are no records to write"):
        fffs.dask.write_records(bag_of([b""], 1).filter(len), target)
    with pytest.raises(TypeError):  # in the middle of an object
        fffs.dask.write_records(bag_of([bytes(LARGE), bytes(LARGE), 1], 1), target)
    assert keys_in(target) == []
    assert cloud.uploads() == []


def test_what_is_there_is_not_touched(cloud: Weed, target: str) -> None:
    computed: list[bytes] = []
    key = parse_url(target).key
    cloud.put(cloud.bucket, f"{key}/rows-00000000-01234567.ffr", b"somebody's")
    with pytest.raises(UsageError, match="already exists and is not empty"):
        fffs.dask.write_records(bag_of([b"x"], 1).map(computed.append), target)
    assert keys_in(target) == ["rows-00000000-01234567.ffr"]
    fffs.dask.write_records(bag_of([b"x"], 1), f"{target}-2")
    there = keys_in(f"{target}-2")
    for write in (fffs.dask.write_records, fffs.dask.write_packed):
        with pytest.raises(UsageError, match="already exists and is not empty"):
            write(bag_of([b"y"], 1), f"{target}-2")
    assert keys_in(f"{target}-2") == there
    for url in ("https://127.0.0.1/x", "memory://x"):
        with pytest.raises(UsageError, match="parts can only be written to a local folder, or to s3://"):
            fffs.dask.write_records(bag_of([b"x"], 1).map(computed.append), url)
    assert not computed


def test_a_part_that_is_written_twice_counts_once(cloud: Weed, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"RENEW": 0.1, "LIMIT": 0.5, "_PAUSE": 0.05}.items():
        monkeypatch.setattr(lease, name, seconds)
    with record_parts.RecordParts.begin(target) as parts:
        again = pickle.loads(pickle.dumps(parts))
        again.write(0, [b"a", b"b"])  # its worker died before the engine had the result
        again.write(2, [b"d"])  # the engine has no result of it
        somebodys = f"{parse_url(target).key}/rows-00000000-01234567.ffr"
        cloud.put(cloud.bucket, somebodys, b"")
        written = [parts.write(1, [b"c"]), parts.write(0, [b"a", b"b"])]
        with pytest.raises(FormatError, match="its parts are still being written"):
            fffs.FileReader(f"{target}/")
        with pytest.raises(WriteError, match="another process is writing its parts"):
            fffs.dask.write_records(bag_of([b"x"], 1), target)
        assert parts.commit(written) == 3
    assert somebodys.rpartition("/")[2] in keys_in(target)
    cloud.delete(cloud.bucket, somebodys)
    assert parts_in(target) == [0, 1]
    with pytest.raises(UsageError, match="not there any more"):
        again.write(0, [b"late"])
    assert records_of(target) == [b"a", b"b", b"c"]


def test_attempts_that_differ_are_refused(target: str) -> None:
    with (
        pytest.raises(UsageError, match="partition 0 has vanished, or was written twice with different records"),
        record_parts.RecordParts.begin(target) as parts,
    ):
        written = [parts.write(0, [b"a"])]
        parts.write(0, [b"another"])
        parts.commit(written)
    assert keys_in(target) == []


def test_an_attempt_that_ends_after_the_job(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan was there when the attempt examined it, and is gone when the store has put the part in place."""
    ends: list[Callable[[], object]] = []

    class Late(plan_objects.NewObject):  # type: ignore[misc, name-defined]
        def _put_in_place(self) -> None:
            self._guard = None
            if ends:  # that of the part, not of the manifest
                ends.pop()()
            super()._put_in_place()

    with record_parts.RecordParts.begin(f"{target}-2") as parts:
        first = parts.write(0, [b"a"])
        with monkeypatch.context() as late:
            late.setattr(plan_objects, "NewObject", Late)
            ends.append(lambda: parts.commit([first]))
            with pytest.raises(UsageError, match="not there any more"):
                parts.write(0, [b"a"])
    assert records_of(f"{target}-2") == [b"a"]
    with record_parts.RecordParts.begin(target) as parts, monkeypatch.context() as late:
        late.setattr(plan_objects, "NewObject", Late)
        ends.append(place_of(target).remove)
        with pytest.raises(UsageError, match="not there any more"):
            parts.write(0, [b"a"])
    assert keys_in(target) == []


DRIVER = """
import os, signal, sys
from fffs.engines.record_parts import RecordParts

with RecordParts.begin(sys.argv[1]) as first, RecordParts.begin(sys.argv[2]) as second:
    for k in range(3):
        first.write(k, [b"old"])
        second.write(k, [b"old"])
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_driver_that_was_killed(target: str) -> None:
    done = subprocess.run([sys.executable, "-c", DRIVER, target, f"{target}-2"], timeout=60, check=False)
    assert done.returncode == -9
    assert len(keys_in(target)) == len(keys_in(f"{target}-2")) == 6  # with the plan, its state and the lock
    fffs.dask.write_records(bag_of([b"new"], 1), target)
    assert parts_in(target) == [0]
    assert records_of(target) == [b"new"]
    with pytest.raises(UsageError, match="if it has ended, remove them with fffs plan abort s3://"):
        load_plan(f"{target}-2")
    remove_plan(f"{target}-2")
    assert keys_in(f"{target}-2") == []


# ---------------------------------------------------------------- sources


def test_sources_in_a_store(cloud: Weed, target: str, tmp_path: Path) -> None:
    (tmp_path / "photos" / "a").mkdir(parents=True)
    for k in range(20):
        (tmp_path / "photos" / "a" / f"{k:02}").write_bytes(bytes([k]) * k)
    fffs.pack_folder(tmp_path / "photos", f"{target}/p.ffr")
    with fffs.tfrecord.TFRecordWriter(f"{target}/m.tfrecord") as writer:
        for k in range(20):
            writer.write_one(fffs.tfrecord.encode({"number": [k]}))
    rows = [(f"a/{k:02}", bytes([k]) * k) for k in range(20)]
    bag = fffs.dask.read(f"{target}/p.ffr", npartitions=4)
    assert bag.compute() == rows
    assert fffs.dask.read([f"{target}/p.ffr"], partition_bytes=50).compute(scheduler="threads") == rows
    messages = fffs.dask.read(f"{target}/m.tfrecord", decode=fffs.tfrecord.decode, npartitions=3)
    assert messages.map(lambda row: int(row["number"][0])).compute() == list(range(20))
    last = bag.to_delayed()[-1]
    (tmp_path / "photos" / "a" / "19").write_bytes(b"other")
    fffs.pack_folder(tmp_path / "photos", f"{target}/p.ffr")
    with pytest.raises(SourceChangedError):
        last.compute()


def test_a_set_without_one_of_its_parts(cloud: Weed, target: str, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for k in range(20):
        (tmp_path / "photos" / f"{k:02}").write_bytes(bytes([k]) * k)
    fffs.pack_folder(tmp_path / "photos", target, parts=3)
    bag = fffs.dask.read(f"{target}/", npartitions=4)
    assert bag.compute() == [(f"{k:02}", bytes([k]) * k) for k in range(20)]
    cloud.delete(cloud.bucket, f"{parse_url(target).key}/rows-00001-of-00003.ffr")
    with pytest.raises(SourceNotFoundError, match="part 1 missing"):
        fffs.dask.read(f"{target}/")


# ---------------------------------------------------------------- clusters whose workers die

WORKER = """
import os, pathlib, signal

def dying(k, marks):
    '''Return a record. The first attempt at one kills its worker when a part of its object was sent.'''
    mark = pathlib.Path(marks) / "died"
    if k == 3 and not mark.exists():
        from fffs.objects.part_sender import PartSender

        def put(sender, number, begin, end, put=PartSender.put):
            put(sender, number, begin, end)
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

        PartSender.put = put
    return bytes([k]) * ((9 << 20) if k == 3 else 100)

def failing(k):
    if k == 5:
        raise ValueError("item 5")
    return bytes([k])
"""

DASK = """
import sys, dask.bag
from distributed import Client, LocalCluster
import fffs.dask
from worker import dying, failing

if __name__ == "__main__":
    target, marks = sys.argv[1:]
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        print(fffs.dask.write_records(dask.bag.range(6, npartitions=6).map(dying, marks), target))
        rows = fffs.dask.read(target + "/", npartitions=3)
        print(fffs.dask.write_packed(rows, target + "-packed"))
        try:
            fffs.dask.write_records(dask.bag.range(6, npartitions=6).map(failing), target + "-failed")
        except ValueError as error:
            print(error)
"""

RAY = """
import os, sys, warnings, ray
import fffs.ray
from worker import dying, failing

target, marks = sys.argv[1:]
variables = {"AWS_ENDPOINT_URL": os.environ.pop("AWS_ENDPOINT_URL")}  # which workers get from here only
ray.init(
    num_cpus=2,
    include_dashboard=False,
    logging_level="ERROR",
    log_to_driver=False,
    runtime_env={"env_vars": variables},
)
os.environ.update(variables)
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of its own settings
    ray.data.DataContext.get_current().enable_progress_bars = False
numbers = ray.data.range(6, override_num_blocks=6)
print(fffs.ray.write_records(numbers.map(lambda row: {"bytes": dying(row["id"], marks)}), target))
print(fffs.ray.write_packed(fffs.ray.read(target + "/", override_num_blocks=3), target + "-packed"))
try:
    fffs.ray.write_records(numbers.map(lambda row: {"bytes": failing(row["id"])}), target + "-failed")
except ray.exceptions.RayTaskError as error:
    print("item 5" if "item 5" in str(error) else error)
ray.shutdown()
"""


@pytest.mark.parametrize("program", [DASK, RAY], ids=["dask", "ray"])
def test_a_worker_that_is_killed(program: str, cloud: Weed, target: str, tmp_path: Path) -> None:
    """In the middle of an object; another one writes it. In a program of its own, as engines change the process."""
    (tmp_path / "worker.py").write_text(WORKER)
    (tmp_path / "program.py").write_text(program)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, tmp_path / "program.py", target, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-3:] == ["6", "6", "item 5"]  # Ray says before that a worker died
    assert (tmp_path / "died").exists()
    expected = [bytes([k]) * (LARGE if k == 3 else 100) for k in range(6)]
    assert sorted(records_of(target)) == expected
    assert sorted(rows_of(f"{target}-packed").values()) == expected
    assert keys_in(f"{target}-failed") == []
    end = time.monotonic() + 10
    while cloud.uploads() and time.monotonic() < end:  # the store processes of dead workers abort them
        time.sleep(0.05)
    assert cloud.uploads() == []
