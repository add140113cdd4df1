"""Packing into parts on executors: workers that die, drivers that are killed, and sets that appear at once."""

from __future__ import annotations

import errno
import os
import select
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from builders import as_nobody, small_disk
from inside import executors
from set_sources import assert_same, assert_same_contents, files_of, small_folder

import fffs
from fffs.errors import ReadError, SourceChangedError, UsageError, WorkerError, WriteError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with four folders of five files."""
    return small_folder(tmp_path)


class Later:
    """Like a job of submitit: it has a result, and is no future of ``concurrent.futures``."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.result = call


class Jobs:
    """Like an executor of submitit: it has ``submit`` and nothing else."""

    def submit(self, fn: Callable[..., Any], *args: Any) -> Later:
        return Later(lambda: fn(*args))


def executor_of(kind: str) -> Any:
    return {
        "none": lambda: None,
        "jobs": Jobs,
        "threads": lambda: ThreadPoolExecutor(3),
        "pool": lambda: ProcessPoolExecutor(1),
        "processes": lambda: "processes:2",
    }[kind]()


@pytest.mark.parametrize("kind", ["none", "jobs", "threads", "pool", "processes"])
def test_every_executor_writes_the_same_bytes(source: Path, tmp_path: Path, kind: str) -> None:
    executor, reports = executor_of(kind), []
    summary = fffs.pack_folder(
        source, tmp_path / "set", parts=4, executor=executor, progress=lambda *done: reports.append(done)
    )
    assert summary == (20, 80_000)
    assert reports[-1] == (80_000, 80_000)
    assert sorted(os.listdir(tmp_path)) == ["photos", "set"]
    assert_same(source, tmp_path / "set", tmp_path / "copy")
    plan = fffs.plan_pack(source, tmp_path / "again" / "set", 4) if not (tmp_path / "again").mkdir() else None
    assert plan is not None
    plan.commit([task.run() for task in plan.tasks[::-1]])
    assert files_of(tmp_path / "set") == files_of(tmp_path / "again" / "set")
    if isinstance(executor, Executor):
        executor.submit(int).result()  # it was not shut down
        executor.shutdown()


@pytest.mark.parametrize("text", ["processes", "processes:0", "processes:x", "slurm:3", ""])
def test_other_texts_and_objects_are_refused_before_any_work(source: Path, tmp_path: Path, text: str) -> None:
    for executor in (text, object()):
        with pytest.raises(UsageError, match="executor"):
            fffs.pack_folder(source, tmp_path / "set", parts=2, executor=executor)  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == ["photos"]


def test_options_that_do_not_go_together_are_refused(source: Path, tmp_path: Path) -> None:
    for options in ({"executor": "processes:2"}, {"restart": True}, {"parts": 2, "verity": True}):
        with pytest.raises(UsageError):
            fffs.pack_folder(source, tmp_path / "x.ffr", **options)  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == ["photos"]


# ---------------------------------------------------------------- workers that die


class Dying(Executor):
    """Runs tasks at once; before it returns one of them for the first times, a worker seems to die."""

    def __init__(self, part: int, times: int) -> None:
        self.part, self.left, self.runs = part, times, [0] * 9

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        task = args[0]
        self.runs[task.number] += 1
        if task.number == self.part and self.left:
            self.left -= 1
            future.set_exception(RuntimeError("node 7 is gone"))
        else:
            try:
                future.set_result(fn(*args, **kwargs))
            except Exception as error:
                future.set_exception(error)
        return future


def test_a_task_whose_worker_died_runs_again(source: Path, tmp_path: Path) -> None:
    dying = Dying(2, executors.TRIES - 1)
    fffs.pack_folder(source, tmp_path / "set", parts=4, executor=dying)
    assert dying.runs[:4] == [1, 1, executors.TRIES, 1]
    assert_same(source, tmp_path / "set", tmp_path / "copy")


def test_a_task_whose_workers_always_die_is_named_and_the_others_are_kept(source: Path, tmp_path: Path) -> None:
    dying = Dying(2, 99)
    with pytest.raises(WorkerError, match=r"photos from day2 up to day3: .*set-00002-of-00004\.ffr.*node 7 is gone"):
        fffs.pack_folder(source, tmp_path / "set", parts=4, executor=dying)
    assert dying.runs[2] == executors.TRIES
    assert sorted(os.listdir(tmp_path)) == [".set.fffs-plan", "photos"]
    fffs.pack_folder(source, tmp_path / "set", parts=4)
    assert sorted(os.listdir(tmp_path)) == ["photos", "set"]


def die(task: Any, jobs: int | None) -> Any:
    """Runs in a worker in place of ``run_task``: it is killed in the middle of part 1, the first two times."""
    marks = Path(task.target).with_name("marks")
    count = len(os.listdir(marks))
    if task.number == 1 and count < 2:
        (marks / str(count)).touch()
        task.run(jobs, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    return task.run(jobs)


def test_a_worker_that_is_killed_in_the_middle_of_a_part(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "marks").mkdir()
    monkeypatch.setattr(executors, "run_task", die)
    fffs.pack_folder(source, tmp_path / "set", parts=4, executor="processes:2")
    assert len(os.listdir(tmp_path / "marks")) == 2
    assert_same(source, tmp_path / "set", tmp_path / "copy")


def test_a_script_that_starts_processes_while_they_run_it_is_told_so(source: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"import fffs; fffs.pack_folder({str(source)!r}, 'set', parts=1, executor='processes:1')")
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "each new process runs this module first" in done.stderr
    assert "before it began" in done.stderr.splitlines()[-1]
    assert "if __name__ == '__main__':" in done.stderr.splitlines()[-1]
    assert not list(tmp_path.glob(".set*"))


def test_a_pool_that_a_dead_worker_broke_is_an_error_that_names_the_input(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "marks").mkdir()
    monkeypatch.setattr(executors, "run_task", die)
    with ProcessPoolExecutor(1) as pool, pytest.raises(WorkerError, match=r"photos from .*executor failed"):
        fffs.pack_folder(source, tmp_path / "set", parts=4, executor=pool)


@pytest.mark.parametrize("executor", [None, ThreadPoolExecutor(2)], ids=["none", "pool"])
def test_a_file_that_cannot_be_read_is_named_and_other_parts_are_kept(
    source: Path, in_public: Path, executor: Any
) -> None:
    shutil.copytree(source, in_public / "photos")
    odd = in_public / "photos" / "day2" / "3.jpg"
    odd.chmod(0)
    in_public.chmod(0o777)
    with as_nobody(in_public):
        with pytest.raises(ReadError, match=r"day2/3\.jpg"):
            fffs.pack_folder(in_public / "photos", in_public / "set", parts=4, executor=executor)
        before = inodes(in_public / ".set.fffs-plan" / "parts")
    assert before
    odd.chmod(0o644)
    with as_nobody(in_public):
        fffs.pack_folder(in_public / "photos", in_public / "set", parts=4, executor=executor)
    assert before.items() <= inodes(in_public / "set").items()
    assert_same(in_public / "photos", in_public / "set", in_public / "copy")


def test_a_change_while_it_runs_is_named_and_parts_without_it_are_kept(source: Path, tmp_path: Path) -> None:
    class Changing(Dying):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            if args[0].number == 2:
                (source / "day2" / "3.jpg").write_bytes(b"other" * 800)
            return super().submit(fn, *args, **kwargs)

    changing = Changing(0, 0)
    with pytest.raises(SourceChangedError, match=r"changed after the plan was made.*day2/3\.jpg"):
        fffs.pack_folder(source, tmp_path / "set", parts=4, executor=changing)
    assert changing.runs[2] == 1
    before = inodes(tmp_path / ".set.fffs-plan" / "parts")
    assert len(before) == 3
    fffs.pack_folder(source, tmp_path / "set", parts=4)
    assert before.items() <= inodes(tmp_path / "set").items()
    assert_same(source, tmp_path / "set", tmp_path / "copy")


# ---------------------------------------------------------------- drivers


@pytest.fixture
def start(source: Path, tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Start a driver in another process that writes two parts and then runs a statement for each further one."""
    started = []

    def run(statement: str) -> subprocess.Popen[bytes]:
        code = f"""
            import os, signal, sys, fffs
            from fffs.cluster import part_task
            from fffs.packing.pack_task import PackTask
            write = PackTask._write
            def stop_at_third(self, *args):
                if self.number >= 2:
                    {statement}
                return write(self, *args)
            PackTask._write = stop_at_third
            fffs.pack_folder({str(source)!r}, {str(tmp_path / "set")!r}, parts=4)
        """
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def inodes(place: Path) -> dict[str, int]:
    """Return the inodes of parts. Until all are there, their names begin with a mark."""
    return {path.name[-len("set-00000-of-00004.ffr") :]: path.stat().st_ino for path in place.glob("*.ffr")}


def test_a_driver_that_was_killed_goes_on_where_it_stopped(source: Path, tmp_path: Path, start: Any) -> None:
    assert start("os.kill(os.getpid(), signal.SIGKILL)").wait() == -signal.SIGKILL
    parts = tmp_path / ".set.fffs-plan" / "parts"
    before = inodes(parts)
    assert sorted(before) == ["set-00000-of-00004.ffr", "set-00001-of-00004.ffr"]
    fffs.pack_folder(source, tmp_path / "set", parts=4)
    after = inodes(tmp_path / "set")
    assert len(after) == 4
    assert before.items() <= after.items()
    assert sorted(os.listdir(tmp_path)) == ["photos", "set"]
    assert_same(source, tmp_path / "set", tmp_path / "copy")


def test_restart_begins_anew(source: Path, tmp_path: Path, start: Any) -> None:
    start("os.kill(os.getpid(), signal.SIGKILL)").wait()
    parts = tmp_path / ".set.fffs-plan" / "parts"
    handles = [os.open(path, os.O_RDONLY) for path in parts.glob("*.ffr")]  # keep their inode numbers in use
    before = set(inodes(parts).values())
    fffs.pack_folder(source, tmp_path / "set", parts=4, restart=True)
    for handle in handles:
        os.close(handle)
    assert not before & set(inodes(tmp_path / "set").values())


def test_a_second_driver_is_refused_while_the_first_lives(source: Path, tmp_path: Path, start: Any) -> None:
    first = start("print('here', flush=True); sys.stdin.readline()")
    assert first.stdout.readline() == b"here\n"
    acts: list[Callable[[], object]] = [
        lambda: fffs.pack_folder(source, tmp_path / "set", parts=4),
        lambda: fffs.pack_folder(source, tmp_path / "set", parts=4, restart=True),
        lambda: fffs.plan_pack(source, tmp_path / "set", 4),
    ]
    for act in acts:
        with pytest.raises(WriteError, match="another process is writing its parts"):
            act()
    first.communicate(b"\n\n")
    assert first.returncode == 0
    assert_same(source, tmp_path / "set", tmp_path / "copy")


def test_a_commit_that_was_killed_can_be_done_again(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = fffs.plan_pack(source, tmp_path / "set", 3)
    results = [task.run() for task in plan.tasks]
    pid = os.fork()
    if pid == 0:
        monkeypatch.setattr(os, "rename", lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
        plan.commit(results)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    assert not (tmp_path / "set").exists()
    plan.commit(results)
    assert sorted(os.listdir(tmp_path)) == ["photos", "set"]
    assert [path.stat().st_nlink for path in (tmp_path / "set").iterdir()] == [1, 1, 1]


def test_the_workers_of_a_killed_driver_end(source: Path, tmp_path: Path) -> None:
    code = """
        import os, sys, time
        from fffs.cluster.processes import Processes
        if __name__ == "__main__":
            pool = Processes(1)
            print(pool.submit(os.getpid).result(), flush=True)
            pool.submit(time.sleep, 600)
            sys.stdin.readline()
    """
    script = tmp_path / "driver.py"
    script.write_text(textwrap.dedent(code))
    driver = subprocess.Popen([sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert driver.stdout
    worker = os.pidfd_open(int(driver.stdout.readline()))
    driver.kill()
    driver.communicate()
    assert wait_for_end(worker)


def wait_for_end(pidfd: int) -> bool:
    try:
        return bool(select.select([pidfd], [], [], 30)[0])
    finally:
        os.close(pidfd)


# ---------------------------------------------------------------- hostile folders


def test_many_files_in_one_folder(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    folder.mkdir()
    names = os.open(folder, os.O_RDONLY)
    (folder / "0").write_bytes(b"x")
    for k in range(1, 20_000):
        os.close(os.open(str(k), os.O_CREAT | os.O_WRONLY, dir_fd=names))
    os.close(names)
    summary = fffs.pack_folder(folder, tmp_path / "set", parts=7)
    assert summary.files == len(os.listdir(folder))
    with fffs.PackedFolder(tmp_path / "set") as pack:
        assert pack.list() == sorted(os.listdir(folder))
    counts = []
    for path in sorted((tmp_path / "set").iterdir()):
        with fffs.PackedFolder(path) as pack:
            counts.append(pack.num_files())
    assert max(counts) <= 1.02 * summary.files / 7
    assert min(counts) >= 0.98 * summary.files / 7


def test_one_huge_sparse_file_is_alone(source: Path, tmp_path: Path) -> None:
    with (source / "day1" / "huge").open("wb") as file:
        file.truncate(64 << 20)
    fffs.pack_folder(source, tmp_path / "set", parts=3)
    sizes = sorted(len(data) for data in files_of(tmp_path / "set").values())
    assert sizes[2] > 64 << 20 > 1000 * sizes[1]
    assert_same_contents(source, tmp_path / "set", tmp_path / "copy")


def test_an_error_before_the_first_part_leaves_nothing(source: Path, tmp_path: Path) -> None:
    class Broken(Executor):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = Future()
            future.set_exception(WriteError(errno.EIO, args[0].path))
            return future

    with pytest.raises(WriteError, match="Input/output error"):
        fffs.pack_folder(source, tmp_path / "set", parts=4, executor=Broken())
    assert os.listdir(tmp_path) == ["photos"]


def test_names_that_parts_cannot_have_are_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="too long for the names of parts"):
        fffs.pack_folder(source, tmp_path / ("x" * 240), parts=2)
    assert os.listdir(tmp_path) == ["photos"]
    fffs.pack_folder(source, tmp_path / ("x" * 230), parts=2)


@pytest.mark.parametrize("write", [fffs.plan_pack, fffs.pack_folder])
def test_a_disk_without_room_for_a_plan_has_nothing_of_it(source: Path, tmp_path: Path, write: Any) -> None:
    with small_disk(tmp_path / "disk", 1 << 16) as disk:
        with pytest.raises(OSError, match="No space"), (disk / "full").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(512))
        with pytest.raises(WriteError, match=r"\.set\.fffs-plan.*cannot write: No space"):
            write(source, disk / "set", parts=3)
        assert os.listdir(disk) == ["full"]


def test_a_disk_that_is_full_leaves_the_parts_that_fit(source: Path, tmp_path: Path) -> None:
    with (source / "day1" / "huge").open("wb") as file:
        file.write(b"x" * (4 << 20))
    with small_disk(tmp_path / "disk", 3 << 20) as disk:
        with pytest.raises(WriteError, match=r"set-0000[01]-of-00003\.ffr: cannot write: No space"):
            fffs.pack_folder(source, disk / "set", parts=3)
        assert os.listdir(disk) == [".set.fffs-plan"]
