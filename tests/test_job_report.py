"""Sight of jobs: reports of what tasks did, failures while they happen, and progress in bytes."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import tarfile
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest
from inside import executors, processes, run_program, verify_files

import fffs
from fffs.errors import Exit, UsageError, WorkerError

PARTS = 4
SIZES = [4000 + k for k in range(20)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with four folders of five files."""
    folder = tmp_path / "photos"
    for k, size in enumerate(SIZES):
        path = folder / f"day{k // 5}" / f"{k}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([k]) * size)
    os.mkfifo(folder / "day1" / "fifo")
    return folder


class Failing(Executor):
    """Runs tasks at once; before it returns that of part 2, a worker seems to die, so many times."""

    def __init__(self, times: int) -> None:
        self.left = times

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if args[0].number == 2 and self.left:
            self.left -= 1
            future.set_exception(RuntimeError("node 7 is gone"))
        else:
            future.set_result(fn(*args, **kwargs))
        return future


def pack(source: Path, executor: Any = None, target: str = "set") -> tuple[list[fffs.JobReport], list[str]]:
    """Pack into parts, and return the reports and the warnings."""
    reports: list[fffs.JobReport] = []
    lines: list[str] = []
    with contextlib.suppress(WorkerError):
        fffs.pack_folder(
            source, source.parent / target, parts=PARTS, executor=executor, report=reports.append, warn=lines.append
        )
    return reports, lines


def test_the_last_report_says_what_each_part_took(source: Path) -> None:
    reports, _ = pack(source)
    last = reports[-1]
    assert [len(report.results) for report in reports] == [0, 1, 2, 3, 4, 4]
    assert (last.parts, last.total_bytes, last.done_bytes) == (PARTS, sum(SIZES), sum(SIZES))
    assert [result.part for result in last.results] == list(range(PARTS))
    assert [os.path.getsize(result.path) for result in last.results] == [result.size for result in last.results]
    assert {result.host for result in last.results} == {os.uname().nodename}
    assert [r.seconds for r in last.slowest] == sorted((r.seconds for r in last.results), reverse=True)
    assert last.seconds is not None
    assert last.seconds >= sum(result.seconds for result in last.results)
    assert last.bytes_per_second == pytest.approx(sum(SIZES) / last.seconds)
    assert len(last.left_out) == 1
    assert (last.failures, last.error) == ((), "")
    assert pickle.loads(pickle.dumps(last)) == last


def test_a_failed_attempt_is_a_warning_when_it_happens_and_counted_in_the_report(source: Path) -> None:
    reports, lines = pack(source, Failing(2))
    path = source.parent / "set" / f"set-00002-of-0000{PARTS}.ffr"
    for attempt in (1, 2):
        expected = f"attempt {attempt} of {executors.TRIES} failed, and it runs again: node 7 is gone"
        assert lines[attempt - 1].startswith(str(path))
        assert f"{source} from day2" in lines[attempt - 1]
        assert lines[attempt - 1].endswith(expected)
    assert len(lines) == 3  # and the FIFO
    assert [len(report.failures or ()) for report in reports if len(report.results) < PARTS][-1] == 2
    facts = json.loads(reports[-1].to_json())
    assert [task["attempts"] for task in facts["tasks"]] == [1, 1, 3, 1]
    assert [(failure["part"], failure["attempt"]) for failure in facts["failures"]] == [(2, 1), (2, 2)]


def test_a_job_that_fails_reports_what_it_did(source: Path) -> None:
    reports, lines = pack(source, Failing(99))
    last = reports[-1]
    assert "failed in 3 attempts: node 7 is gone" in last.error
    assert last.failures is not None
    assert [failure.attempt for failure in last.failures] == [1, 2, 3]
    assert len(lines) == 2  # the last attempt is the error
    assert {result.part for result in last.results} <= {0, 1, 3}


def die_once(task: Any, jobs: int | None) -> Any:
    """Runs in a worker in place of ``run_task``: it is killed in the middle of part 1, the first time."""
    mark = Path(task.target).with_name("mark")
    if task.number == 1 and not mark.exists():
        mark.touch()
        task.run(jobs, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    return task.run(jobs)


def test_a_killed_worker_is_named(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "run_task", die_once)
    reports, lines = pack(source, "processes:2")
    assert "killed by signal 9" in lines[0]
    assert "set-00001" in lines[0]
    assert json.loads(reports[-1].to_json())["tasks"][1]["attempts"] == 2


class Once(Executor):
    """Runs functions at once, except for the first one, whose worker seems to die."""

    def __init__(self) -> None:
        self.died = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if self.died:
            future.set_result(fn(*args, **kwargs))
        else:
            self.died = True
            future.set_exception(RuntimeError("Traceback (most recent call last):\n  ...\nRuntimeError: no memory\n"))
        return future


def test_verifying_on_an_executor_tells_failed_attempts_in_one_line(source: Path) -> None:
    pack(source)
    lines: list[str] = []
    found = verify_files([str(source.parent / "set")], None, Once(), warn=lines.append)
    assert (found.records, found.bad) == (20 + PARTS, [])
    path = source.parent / "set" / f"set-00000-of-0000{PARTS}.ffr"
    assert lines == [f"{path}: attempt 1 of 3 failed, and it runs again: RuntimeError: no memory"]


# ---------------------------------------------------------------- progress


def say_twice(message: str) -> str:
    """Send two messages to the driver, one right after the other."""
    processes.tell_driver(message)
    processes.tell_driver("too early")
    return "done"


def test_a_function_in_a_worker_tells_its_driver_but_not_too_often() -> None:
    heard: list[object] = []
    processes.tell_driver("nobody listens")
    with processes.Processes(1) as workers:
        with workers.heard_by(heard.append):
            assert workers.submit(say_twice, "half").result() == "done"
        assert workers.submit(say_twice, "unheard").result() == "done"
    assert heard == ["half"]


def test_bytes_of_running_parts_count_until_the_attempt_fails(source: Path) -> None:
    plan = fffs.plan_pack(source, source.parent / "set", PARTS)
    told: list[tuple[int, int]] = []
    watch = executors.JobWatch(progress=lambda *done: told.append(done))
    watch.begin(plan.target, plan.tasks, plan.total_bytes)
    watch.running(0, 100)
    watch.running(1, 50)
    watch.failed(1, 1, RuntimeError("gone"), 3)
    watch.running(0, 200)
    result = plan.tasks[0].run()
    watch.done(result)
    assert told == [(done, sum(SIZES)) for done in (0, 100, 150, 200, result.total_bytes)]


# ---------------------------------------------------------------- commands


def test_the_report_of_a_command(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.json"
    command = ["pack", "--parts", str(PARTS), "--report", str(file), str(source), str(tmp_path / "set")]
    assert run_program(command) == Exit.OK
    facts = json.loads(file.read_text())
    assert facts["bytes_per_second"] > 0
    assert (facts["complete"], facts["records"], facts["total_bytes"], facts["error"]) == (4, 20, sum(SIZES), None)
    assert facts["left_out"] == [f"{source}/day1/fifo: a FIFO, left out"]
    assert facts["size"] == sum(path.stat().st_size for path in (tmp_path / "set").iterdir())
    assert facts["slowest"][0] == max(facts["tasks"], key=lambda task: task["seconds"])["part"]
    capsys.readouterr()


def test_the_report_of_a_job_array(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, file = str(tmp_path / "set"), tmp_path / "report.json"
    assert run_program(["plan", "pack", "--parts", str(PARTS), str(source), target]) == Exit.OK
    assert run_program(["plan", "run", target]) == Exit.OK
    assert run_program(["plan", "commit", "--report", str(tmp_path), target]) == Exit.WRITE
    assert not os.path.exists(target)
    assert run_program(["plan", "commit", "--report", str(file), target]) == Exit.OK
    facts = json.loads(file.read_text())
    assert facts["task_seconds"] == pytest.approx(sum(task["seconds"] for task in facts["tasks"]))
    assert (facts["complete"], facts["seconds"], facts["failures"]) == (4, None, None)
    assert {task["attempts"] for task in facts["tasks"]} == {None}
    capsys.readouterr()


def test_a_report_replaces_nothing_but_a_report(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a name after --report, the first source is the name."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.tar", "b.tar", "c.tar"):
        with tarfile.open(name, "w") as archive:
            archive.add("photos/day2", name)
    before = Path("a.tar").read_bytes()
    commands = ["convert --parts 2 --report a.tar b.tar c.tar set", "pack --parts 2 --report a.tar photos set"]
    for command in [*commands, "plan pack --parts 2 photos set", "plan run set", "plan commit --report a.tar set"]:
        code = run_program(command.split())
        assert code == (Exit.USAGE if "--report" in command else Exit.OK)
        assert Path("a.tar").read_bytes() == before
        assert not os.path.exists("set")
    assert "a.tar: exists, and is not a report" in capsys.readouterr().err
    Path("report").touch()
    for target in ("set", "other"):
        assert run_program(["pack", "--parts", "2", "--restart", "--report", "report", "photos", target]) == Exit.OK
        assert json.loads(Path("report").read_text())["target"] == str(tmp_path / target)


def fail(*_: Any) -> None:
    """Runs in a worker in place of ``run_task``."""
    raise WorkerError("node 7 is gone")


def test_a_command_that_fails_writes_its_report(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "run_task", fail)
    file = tmp_path / "report.json"
    command = ["pack", "--parts", "2", "--executor", "processes:1", "--report", str(file), str(source), "set"]
    monkeypatch.chdir(tmp_path)
    assert run_program(command) == Exit.WORKER
    facts = json.loads(file.read_text())
    assert "node 7 is gone" in facts["error"]
    assert facts["complete"] == 0
    capsys.readouterr()


def test_a_report_is_for_parts(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_program(["pack", "--report", str(tmp_path / "r"), str(source), str(tmp_path / "x.ffr")]) == Exit.USAGE
    with pytest.raises(UsageError, match="report"):
        fffs.pack_folder(source, tmp_path / "x.ffr", report=print)
    assert os.listdir(tmp_path) == ["photos"]
    capsys.readouterr()
