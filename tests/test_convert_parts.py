"""Converting record files into parts on many machines: plans, tasks that run anywhere, damage and changes."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import select
import shutil
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import pack_small_folder, record_file
from inside import PlanFolder, convert_task, executors, run_program
from set_sources import files_of

import fffs
from fffs import granular
from fffs.errors import (
    ChecksumError,
    Exit,
    FormatError,
    RecordError,
    SourceChangedError,
    SourceNotFoundError,
    UsageError,
    WriteError,
)

SIZES = np.random.Generator(np.random.PCG64(5)).integers(0, 300, 2000)
RECORDS = [bytes([k % 251]) * int(size) for k, size in enumerate(SIZES)]
FORMATS = {"ffrecord": "set-{:05}-of-00004.ffr", "tfrecord": "set-{:05}-of-00004.tfrecord", "ofrecord": "part-{:05}"}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the same records in every format."""
    folder = tmp_path_factory.mktemp("sources")
    (folder / "x.ffr").write_bytes(record_file(RECORDS))
    for name in ("x.tfrecord", "part-0", "x.bag"):
        fffs.convert(folder / "x.ffr", folder / name, warn=lambda _: None)
    fffs.convert(folder / "x.ffr", folder / "shards", to="tfrecord", parts=3)
    fffs.convert(folder / "x.ffr", folder / "parts", to="ffrecord", parts=5)
    return folder


@pytest.fixture
def source(tmp_path: Path, sources: Path) -> Path:
    return Path(shutil.copy(sources / "x.tfrecord", tmp_path / "x.tfrecord"))


def records_of(*paths: Path) -> list[bytes]:
    with fffs.open([str(path) for path in paths]) as reader:
        return [record.tobytes() for record in reader.read(range(reader.n))]


def run_all(plan: fffs.ConvertPlan) -> list[Any]:
    return plan.commit([task.run() for task in plan.tasks[::-1]])


# ---------------------------------------------------------------- the division


@pytest.mark.parametrize("name", ["x.ffr", "x.tfrecord", "part-0", "x.bag", "shards", "parts"])
@pytest.mark.parametrize("to", list(FORMATS))
def test_each_format_is_divided_by_records_into_each(sources: Path, tmp_path: Path, name: str, to: str) -> None:
    plan = fffs.plan_convert(sources / name, tmp_path / "set", 4, to=to)
    results = run_all(plan)
    names = [FORMATS[to].format(k) for k in range(4)]
    assert sorted(os.listdir(tmp_path / "set")) == names
    assert records_of(*(tmp_path / "set" / name for name in names)) == RECORDS
    assert sum(result.records for result in results) == len(RECORDS)
    wanted = sum(map(len, RECORDS)) / 4
    assert all(abs(result.total_bytes - wanted) < 0.02 * wanted for result in results)


def test_the_division_and_the_bytes_are_those_of_one_process(sources: Path, tmp_path: Path) -> None:
    for to in FORMATS:
        for folder in (tmp_path / to, tmp_path / "one" / to):
            folder.mkdir(parents=True)
        run_all(fffs.plan_convert(sources / "x.ffr", tmp_path / to / "set", 4, to=to))
        fffs.convert(sources / "x.ffr", tmp_path / "one" / to / "set", to=to, parts=4, warn=lambda _: None)
        assert files_of(tmp_path / to / "set") == files_of(tmp_path / "one" / to / "set")


def test_several_sources_are_one_after_the_other(sources: Path, tmp_path: Path) -> None:
    plan = fffs.plan_convert([sources / "x.tfrecord", sources / "shards"], tmp_path / "set", 3, to="ffrecord")
    run_all(plan)
    assert records_of(tmp_path / "set") == RECORDS * 2
    with pytest.raises(UsageError, match=r"x\.ffr: is ffrecord, but .*x\.tfrecord is tfrecord"):
        fffs.plan_convert([sources / "x.tfrecord", sources / "x.ffr"], tmp_path / "mixed", 3, to="ffrecord")


def test_fewer_records_than_parts_and_none_at_all(tmp_path: Path) -> None:
    for count, expected in ((3, 3), (0, 1)):
        (tmp_path / "x.ffr").write_bytes(record_file([b""] * count))
        plan = fffs.plan_convert(tmp_path / "x.ffr", tmp_path / str(count), 9, to="tfrecord")
        assert [result.records for result in run_all(plan)] == [1] * count or count == 0
        assert len(os.listdir(tmp_path / str(count))) == expected


def test_a_task_scans_only_its_own_frames(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = fffs.plan_convert(source, tmp_path / "set", 4, to="ffrecord")
    parts = [task.sources[0] for task in plan.tasks]
    assert [part.end for part in parts[:-1]] == [part.begin for part in parts[1:]]
    data = bytearray(source.read_bytes())
    data[: parts[2].begin] = bytes(parts[2].begin)  # not what is before
    status = source.stat()
    source.write_bytes(data)
    os.utime(source, ns=(0, status.st_mtime_ns))
    assert plan.tasks[2].run().records == parts[2].records


@pytest.mark.parametrize(("layout", "parts"), [("v1", None), ("v3", None), ("v1", 3), ("v3", 3)])
def test_a_data_set_of_one_key_is_divided_by_rows(sources: Path, tmp_path: Path, layout: str, parts: int) -> None:
    fffs.convert(sources / "x.ffr", tmp_path / "data", to="granular", layout=layout, parts=parts)
    run_all(fffs.plan_convert(tmp_path / "data", tmp_path / "set", 4, to="tfrecord", verify=True))
    assert records_of(tmp_path / "set") == RECORDS


def test_compressed_files_are_divided_as_wholes(sources: Path, tmp_path: Path) -> None:
    for path in (sources / "shards").iterdir():
        (tmp_path / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    names = sorted(tmp_path.iterdir())
    plan = fffs.plan_convert(names, tmp_path / "set", 2, to="ffrecord", verify=True)
    assert [len(task.sources) for task in plan.tasks] in ([1, 2], [2, 1])
    run_all(plan)
    assert records_of(tmp_path / "set") == RECORDS
    with pytest.raises(UsageError, match="at most --parts 3"):
        fffs.plan_convert(names, tmp_path / "other", 4, to="ffrecord")


# ---------------------------------------------------------------- plans


def test_a_plan_to_convert_survives_pickle_and_json(sources: Path, tmp_path: Path) -> None:
    plan = fffs.plan_convert(sources / "shards", tmp_path / "set", 4, to="ffrecord", verify=True)
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert fffs.ConvertPlan.from_json(plan.to_json()) == plan == fffs.ConvertPlan.load(tmp_path / "set")
    assert fffs.plan_convert(sources / "shards", tmp_path / "set", 4, to="ffrecord", verify=True) == plan
    with pytest.raises(FormatError, match="not a plan of this version to pack, but 'fffs plan 1' to 'convert'"):
        fffs.PackPlan.load(tmp_path / "set")


@pytest.mark.parametrize(
    "damage",
    [
        lambda fields: fields["tasks"].pop(),
        lambda fields: fields["tasks"][0]["sources"][0].pop(),
        lambda fields: fields["tasks"][0]["sources"].__setitem__(0, 7),
        lambda fields: fields["tasks"][0]["sources"][0].__setitem__(0, "/etc/passwd"),
        lambda fields: fields["tasks"][0]["sources"][0].__setitem__(5, "x"),
        lambda fields: fields.update(to="bag"),
        lambda fields: fields.update(to=[]),
        lambda fields: fields.update(kind="tar"),
        lambda fields: fields.update(work="pack"),
        lambda fields: fields.update(tasks={}),
    ],
)
def test_a_damaged_plan_to_convert_is_refused(source: Path, tmp_path: Path, damage: Any) -> None:
    fields = json.loads(fffs.plan_convert(source, tmp_path / "set", 4, to="ffrecord").to_json())
    damage(fields)
    with pytest.raises((FormatError, UsageError)):
        fffs.ConvertPlan.from_json(json.dumps(fields))


def test_a_plan_for_other_work_is_refused_while_there_are_parts(source: Path, tmp_path: Path) -> None:
    plan = fffs.plan_convert(source, tmp_path / "set", 4, to="ffrecord")
    plan.tasks[0].run()
    for options in ({"parts": 3, "to": "ffrecord"}, {"parts": 4, "to": "ofrecord"}):
        with pytest.raises(UsageError, match="has parts for another"):
            fffs.plan_convert(source, tmp_path / "set", **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="has parts for another"):
        fffs.plan_pack(tmp_path / "x", tmp_path / "set", 4) if (tmp_path / "x").mkdir() is None else None
    assert len(fffs.plan_convert(source, tmp_path / "set", 3, to="ffrecord", restart=True).tasks) == 3


def test_a_second_driver_is_refused(source: Path, tmp_path: Path) -> None:
    with PlanFolder(str(tmp_path / "set")).only_driver(), pytest.raises(WriteError, match="another process is writing"):
        fffs.convert(source, tmp_path / "set", to="ffrecord", parts=2, executor=ThreadPoolExecutor(1))


def test_what_cannot_become_parts_is_refused(sources: Path, tmp_path: Path) -> None:
    source = sources / "x.ffr"
    with granular.DatasetWriter(tmp_path / "data", {"a": "bytes", "b": "bytes"}) as writer:
        writer.append({"a": b"a", "b": b""})
    packed = pack_small_folder(tmp_path)
    before = sorted(os.listdir(tmp_path))
    for problem, name, options in (
        ("Bags have no parts", source, {"to": "bag"}),
        ("one process only", source, {"to": "granular"}),
        ("one process only", tmp_path / "data", {"to": "ffrecord"}),
        ("fffs pack --parts", tmp_path, {"to": "ffrecord", "from_": "folder"}),
        ("its names would be lost", packed, {"to": "tfrecord"}),
        ("for packed folders only", source, {"to": "ffrecord", "align": True}),
        ("there is no format 'rar'", source, {"from_": "rar"}),
    ):
        with pytest.raises(UsageError, match=problem):
            fffs.plan_convert(name, tmp_path / "set", 2, **options)  # type: ignore[arg-type]
    for options in ({"executor": "processes:1"}, {"restart": True}, {"parts": 2, "executor": "x", "verity": True}):
        with pytest.raises(UsageError):
            fffs.convert(source, tmp_path / "y.tfrecord", **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="give their number"):
        fffs.convert([source, source], tmp_path / "y.tfrecord")
    with pytest.raises(SourceNotFoundError):
        fffs.plan_convert([], tmp_path / "set", 2, to="ffrecord")
    assert sorted(os.listdir(tmp_path)) == before


def test_records_of_a_pack_are_converted_if_that_is_said(tmp_path: Path) -> None:
    packed = pack_small_folder(tmp_path)
    run_all(fffs.plan_convert(packed, tmp_path / "set", 2, from_="ffrecord", to="tfrecord"))
    assert records_of(tmp_path / "set") == records_of(packed)


# ---------------------------------------------------------------- executors


@pytest.mark.parametrize("kind", ["threads", "pool", "processes:2"])
def test_every_executor_converts_to_the_same_bytes(sources: Path, source: Path, tmp_path: Path, kind: str) -> None:
    executor: Any = {"threads": ThreadPoolExecutor(3), "pool": ProcessPoolExecutor(1)}.get(kind, kind)
    reports: list[Any] = []
    jobs: list[fffs.JobReport] = []
    done = fffs.convert(
        source,
        tmp_path / "set",
        to="ffrecord",
        parts=4,
        executor=executor,
        progress=lambda *done: reports.append(done),
        report=jobs.append,
    )
    size = sum(map(len, RECORDS))
    assert done == ("tfrecord", "ffrecord", len(RECORDS), size, 4)
    assert reports[-1] == (size, size) == (jobs[-1].done_bytes, jobs[-1].total_bytes)
    (tmp_path / "one").mkdir()
    fffs.convert(sources / "x.ffr", tmp_path / "one" / "set", to="ffrecord", parts=4)
    assert files_of(tmp_path / "set") == files_of(tmp_path / "one" / "set")
    assert sorted(os.listdir(tmp_path)) == ["one", "set", "x.tfrecord"]


def die(task: Any, jobs: int | None) -> Any:
    """Runs in a worker in place of ``run_task``: it is killed in the middle of part 1, the first time."""
    mark = Path(task.target).with_name("mark")
    if task.number == 1 and not mark.exists():
        mark.touch()
        task.run(jobs, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    return task.run(jobs)


def test_a_worker_that_is_killed_while_it_converts(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "run_task", die)
    fffs.convert(source, tmp_path / "set", to="ffrecord", parts=3, executor="processes:2", warn=lambda _: None)
    assert (tmp_path / "mark").exists()
    assert records_of(tmp_path / "set") == RECORDS


DRIVER = """
import sys, time
import fffs
from concurrent.futures import Executor, Future

class Slow(Executor):
    def submit(self, fn, *args):
        future = Future()
        if args[0].number == 2:
            print("waits", flush=True)
            time.sleep(600)
        future.set_result(fn(*args))
        return future

fffs.convert(sys.argv[1], sys.argv[2], to="ffrecord", parts=4, executor=Slow())
"""


def test_a_driver_that_is_killed_while_it_converts(source: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(DRIVER), source, tmp_path / "set"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as driver:
        assert driver.stdout
        assert select.select([driver.stdout], [], [], 60)[0]
        driver.kill()
    parts = tmp_path / ".set.fffs-plan" / "parts"
    before = {path.name[33:]: path.stat().st_ino for path in parts.iterdir()}  # without marks
    assert len(before) == 2
    fffs.convert(source, tmp_path / "set", to="ffrecord", parts=4, executor=ThreadPoolExecutor(1))
    assert before.items() <= {path.name: path.stat().st_ino for path in (tmp_path / "set").iterdir()}.items()
    assert records_of(tmp_path / "set") == RECORDS
    assert sorted(os.listdir(tmp_path)) == ["set", "x.tfrecord"]


@pytest.mark.parametrize("to", list(FORMATS))
def test_a_complete_part_is_kept_and_a_damaged_one_written_again(sources: Path, tmp_path: Path, to: str) -> None:
    plan = fffs.plan_convert(sources / "x.ffr", tmp_path / "set", 3, to=to)
    first = plan.tasks[1].run()
    part = Path(PlanFolder(plan.target).part(*plan.parts[1]))
    before, whole = part.stat(), part.read_bytes()
    assert plan.tasks[1].run() == first
    assert os.path.samestat(part.stat(), before)
    damaged = bytearray(whole)
    damaged[len(damaged) // 2] ^= 1
    part.write_bytes(damaged)
    assert plan.tasks[1].run().checksum == first.checksum
    assert part.read_bytes() == whole


def test_conversions_that_run_twice_at_once_write_the_same(source: Path, tmp_path: Path) -> None:
    plan = fffs.plan_convert(source, tmp_path / "set", 2, to="ofrecord")
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda task: task.run(), plan.tasks * 4))
    plan.commit(results)
    assert len({(result.part, result.size, result.checksum) for result in results}) == 2
    assert records_of(tmp_path / "set") == RECORDS


# ---------------------------------------------------------------- sources that are damaged, or change


@pytest.mark.parametrize("executor", [None, "processes:1"])
def test_a_corrupted_record_is_an_error_that_names_file_and_record(
    source: Path, tmp_path: Path, executor: str | None
) -> None:
    data = bytearray(source.read_bytes())
    at = sum(len(record) + 16 for record in RECORDS[:1500]) + 12
    data[at] ^= 1
    source.write_bytes(data)
    with pytest.raises(ChecksumError, match=r"x\.tfrecord.*record 1500\b"):
        fffs.convert(source, tmp_path / "set", to="ffrecord", parts=4, executor=executor, report=lambda _: None)
    assert len(os.listdir(tmp_path / ".set.fffs-plan" / "parts")) >= 2  # the others are kept
    data[at] ^= 1
    source.write_bytes(data)
    fffs.convert(source, tmp_path / "set", to="ffrecord", parts=4, report=lambda _: None)
    assert records_of(tmp_path / "set") == RECORDS


@pytest.mark.parametrize("name", ["x.ffr", "x.tfrecord", "part-0", "x.bag"])
def test_a_truncated_source_is_an_error_that_names_it(sources: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes((sources / name).read_bytes()[:-100])
    with pytest.raises((FormatError, RecordError), match=rf"{name}.*(truncated|damaged)"):
        fffs.convert(tmp_path / name, tmp_path / "set", to="ffrecord", parts=4, executor=ThreadPoolExecutor(1))
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("name", ["x.ffr", "x.tfrecord", "part-0", "x.bag"])
@pytest.mark.parametrize("same_time", [False, True])
def test_a_source_that_changed_after_its_plan_is_named(
    sources: Path, tmp_path: Path, name: str, same_time: bool
) -> None:
    path = Path(shutil.copy(sources / name, tmp_path / name))
    plan = fffs.plan_convert(path, tmp_path / "set", 4, to="ffrecord")
    status = path.stat()
    (tmp_path / "y.ffr").write_bytes(record_file(RECORDS[::-1]))
    if name != "x.ffr":
        fffs.convert(tmp_path / "y.ffr", path, force=True, warn=lambda _: None)
    else:
        os.replace(tmp_path / "y.ffr", path)
    if same_time:
        os.utime(path, ns=(0, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size
    for task in plan.tasks:
        with pytest.raises((SourceChangedError, FormatError), match=name):
            task.run()


def test_a_frame_that_became_damaged_after_the_plan_is_named_by_its_number_in_the_file(
    sources: Path, tmp_path: Path
) -> None:
    source = Path(shutil.copy(sources / "x.tfrecord", tmp_path / "odd: name.tfrecord"))
    plan = fffs.plan_convert(source, tmp_path / "set", 4, to="ffrecord")
    status, data = source.stat(), bytearray(source.read_bytes())
    at = sum(len(record) + 16 for record in RECORDS[:1200])
    data[at] ^= 1
    source.write_bytes(data)
    os.utime(source, ns=(0, status.st_mtime_ns))
    with pytest.raises(FormatError, match=rf"odd: name\.tfrecord: record 1200, whose frame begins at offset {at}: "):
        plan.tasks[2].run()
    assert plan.tasks[3].run().records == plan.tasks[3].sources[0].records


def test_parts_whose_files_did_not_change_are_kept(sources: Path, tmp_path: Path) -> None:
    shutil.copytree(sources / "parts", tmp_path / "parts")
    names = sorted((tmp_path / "parts").iterdir())
    plan = fffs.plan_convert(tmp_path / "parts", tmp_path / "set", 5, to="tfrecord")
    results = [task.run() for task in plan.tasks]
    os.utime(names[-1], ns=(0, 1))
    again = fffs.plan_convert(tmp_path / "parts", tmp_path / "set", 5, to="tfrecord")
    assert again.results()[:4] == results[:4]
    assert again.results()[4] is None
    with pytest.raises(UsageError, match="is not there any more"):
        plan.tasks[0].run()


def test_verify_compares_each_part(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = fffs.plan_convert(source, tmp_path / "set", 2, to="ofrecord", verify=True)
    write = convert_task.write_records

    def damage(writer: Any, *args: Any) -> int:
        crc = write(writer, *args)
        os.pwrite(writer._file.fd, b"\xff\xff\xff", 5000)
        return crc

    monkeypatch.setattr(convert_task, "write_records", damage)
    with pytest.raises(RecordError, match="differs from the source"):
        plan.tasks[0].run()
    assert os.listdir(tmp_path / ".set.fffs-plan" / "parts") == []


# ---------------------------------------------------------------- the command line


def test_the_commands(source: Path, tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def fffs_(line: str) -> str:
        assert run_program(line.split()) == Exit.OK
        return str(capfd.readouterr().out)

    assert "2000 records in 3 parts" in fffs_(
        "convert x.tfrecord a.ffr --parts 3 --executor processes:1 --report r.json"
    )
    assert json.loads(Path("r.json").read_text())["complete"] == 3
    assert "in 3 tasks, from 0 to 2" in fffs_("plan convert --parts 3 --to ffrecord x.tfrecord a")
    fffs_("plan run a --task 0 --task 2")
    assert run_program(["plan", "commit", "a"]) == Exit.USAGE
    assert "part 1 is missing (records" in capfd.readouterr().err
    assert " records, " in fffs_("plan run a --task 1")
    assert "a: 2000 records in 3 parts" in fffs_("plan commit a")
    assert files_of(tmp_path / "a") == files_of(tmp_path / "a.ffr")
    plan = json.loads(fffs_("plan convert --parts 2 --to tfrecord --json x.tfrecord b"))
    assert (plan["work"], len(plan["tasks"])) == ("convert", 2)
    fffs_("plan abort b")
    assert sorted(os.listdir()) == ["a", "a.ffr", "r.json", "x.tfrecord"]
