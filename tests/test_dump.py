"""dump: parts written by processes, all of them or none."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import split_records
from inside import dump, expand_sources, plan_parts
from mounting import wait_until

import fffs

ITEMS = [bytes([k]) * (k % 11) for k in range(50)]


def parts(folder: Path) -> list[list[bytes]]:
    assert sorted(os.listdir(folder)) == [f"PART_{k:05}.ffr" for k in range(len(os.listdir(folder)))]
    return [split_records(path.read_bytes()) for path in sorted(folder.iterdir())]


@pytest.mark.parametrize("nfiles", [2, 7, 50])
def test_parts_together_hold_all_items_in_order(tmp_path: Path, nfiles: int) -> None:
    dump(ITEMS, tmp_path / "set.ffr", nfiles)
    written = parts(tmp_path / "set.ffr")
    assert len(written) == nfiles
    assert [record for part in written for record in part] == ITEMS
    assert max(map(len, written)) - min(map(len, written)) <= 1
    assert [record.tobytes() for record in fffs.FileReader(tmp_path / "set.ffr").read(range(50))] == ITEMS
    assert os.listdir(tmp_path) == ["set.ffr"]


def test_parts_are_read_in_ffrecords_order(tmp_path: Path) -> None:
    ordered = ["1", "10", "2", "PART_00002", "PART_10001", "PART_A"]
    for name in reversed(ordered):
        (tmp_path / f"{name}.ffr").touch()
    assert [Path(path).stem for path in expand_sources(tmp_path)] == ordered


def test_one_part_is_a_file(tmp_path: Path) -> None:
    dump(ITEMS, str(tmp_path / "one.ffr"), nfiles=1)
    assert split_records((tmp_path / "one.ffr").read_bytes()) == ITEMS
    with pytest.raises(ValueError, match=r"\.ffr"):
        dump(ITEMS, tmp_path / "one", 1)


def test_there_are_never_more_parts_than_items(tmp_path: Path) -> None:
    dump(ITEMS[:3], tmp_path / "few", 16)
    assert parts(tmp_path / "few") == [[item] for item in ITEMS[:3]]
    dump([], tmp_path / "none", 4)
    assert parts(tmp_path / "none") == [[]]


def test_an_empty_folder_is_filled_and_missing_ones_are_made(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    dump(ITEMS, tmp_path / "empty", 2)
    dump(ITEMS, tmp_path / "a/b/c", 2)
    assert len(parts(tmp_path / "empty")) == len(parts(tmp_path / "a/b/c")) == 2
    assert (tmp_path / "a/b/c").stat().st_mode == (tmp_path / "a/b").stat().st_mode


def test_arrays_are_written_as_their_bytes(tmp_path: Path) -> None:
    dump(np.arange(6, dtype=np.int32).reshape(3, 2), tmp_path / "arrays", 2)
    assert [record for part in parts(tmp_path / "arrays") for record in part] == [
        np.array([2 * k, 2 * k + 1], np.int32).tobytes() for k in range(3)
    ]


def test_verbose_prints_a_line_for_each_part(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    dump(ITEMS, tmp_path / "set", 2, verbose=True)
    assert sorted(capfd.readouterr().out.splitlines()) == ["PART_00000.ffr: 25 records", "PART_00001.ffr: 25 records"]


# ---------------------------------------------------------------- the planner


@pytest.mark.parametrize(
    ("gib", "count"), [(0, 1), (0.2, 1), (0.5, 2), (0.7, 2), (10, 40), (25, 100), (40, 160), (50, 200), (5000, 200)]
)
def test_the_plan_follows_the_authors_advice(gib: float, count: int) -> None:
    assert plan_parts(int(gib * 2**30)) == count


def test_without_a_number_the_size_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fffs.packing.dump.PART_BYTES", 1000)
    dump([bytes(10)] * 500, tmp_path / "five")
    assert [len(part) for part in parts(tmp_path / "five")] == [100] * 5
    dump([bytes(10)] * 5, tmp_path / "one")
    assert [len(part) for part in parts(tmp_path / "one")] == [5]


class Counted(list[bytes]):
    """Counts the items that are read in this process."""

    reads = 0

    def __getitem__(self, index: Any) -> Any:
        self.reads += 1
        return super().__getitem__(index)


@pytest.mark.parametrize("count", [0, 5, 40, 500])
def test_a_few_items_tell_the_size_of_a_data_set(tmp_path: Path, count: int) -> None:
    items = Counted(bytes([k % 7]) for k in range(count))
    dump(items, tmp_path / "set")
    assert parts(tmp_path / "set") == [list(items)]
    assert items.reads <= count + 32


def test_a_dump_in_a_daemonic_process_needs_no_other(tmp_path: Path) -> None:
    """Such as a process of a Pool."""
    context = multiprocessing.get_context("fork")
    with context.Pool(1) as pool:
        pool.starmap(dump, [(ITEMS, tmp_path / "one"), (ITEMS, tmp_path / "three", 3)])
    assert parts(tmp_path / "one") == [ITEMS]
    assert [record for part in parts(tmp_path / "three") for record in part] == ITEMS


# ---------------------------------------------------------------- failures


class Failing(list[Any]):
    """Item 40 raises."""

    def __getitem__(self, index: Any) -> Any:
        if index == 40:
            self.fail()
        return super().__getitem__(index)

    def fail(self) -> None:
        raise KeyError("item 40 is missing")


class Killed(Failing):
    def fail(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Unpicklable(Failing):
    def fail(self) -> None:
        error = ValueError("cannot be sent")
        error.why = lambda: None  # type: ignore[attr-defined]
        raise error


class SampleError(Exception):
    def __new__(cls, path: str, why: str) -> SampleError:
        """A package that is imported elsewhere may load exceptions without ``__init__``, but not without this."""
        return super().__new__(cls)

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")


class Unloadable(Failing):
    def fail(self) -> None:
        raise SampleError("img40.jpg", "cannot be decoded")


@pytest.mark.parametrize(
    ("kind", "expected", "message"),
    [
        (Failing, KeyError, "item 40"),
        (Killed, RuntimeError, "signal 9"),
        (Unpicklable, RuntimeError, "cannot be sent"),
        (Unloadable, RuntimeError, "SampleError: img40.jpg: cannot be decoded"),
    ],
)
def test_a_failure_in_a_process_is_an_error_and_leaves_nothing(
    tmp_path: Path, kind: Any, expected: type[Exception], message: str
) -> None:
    with pytest.raises(expected, match=message):
        dump(kind(ITEMS), tmp_path / "set", 5)
    assert os.listdir(tmp_path) == []
    dump(ITEMS, tmp_path / "set", 5)
    assert len(parts(tmp_path / "set")) == 5


@pytest.mark.parametrize("executor", ["processes:2", ThreadPoolExecutor(2)], ids=["processes", "pool"])
def test_an_executor_writes_the_same_parts(tmp_path: Path, executor: Any) -> None:
    dump(ITEMS, tmp_path / "set", 3)
    dump(ITEMS, tmp_path / "other", 3, executor=executor)
    assert parts(tmp_path / "set") == parts(tmp_path / "other")


class Once(Failing):
    """Item 40 cannot be read the first time."""

    failed = False

    def fail(self) -> None:
        if not self.failed:
            self.failed = True
            raise OSError("the network is down")


def test_a_part_that_fails_on_an_executor_is_written_again(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        dump(Once(ITEMS), tmp_path / "set", 3, executor=pool)
        assert [record for part in parts(tmp_path / "set") for record in part] == ITEMS
        with pytest.raises(KeyError, match="item 40"):
            dump(Failing(ITEMS), tmp_path / "other", 3, executor=pool)
    assert os.listdir(tmp_path) == ["set"]


def test_processes_end_when_the_parent_is_killed(tmp_path: Path) -> None:
    program = f"""
        import os, time
        from fffs.utils import dump
        class Items(list):
            def __getitem__(self, index):
                open({str(tmp_path / "pids")!r}, "a").write(f"{{os.getpid()}}\\n")
                time.sleep(0.2)
                return b"record"
        if __name__ == "__main__":
            dump(Items([0] * 2000), {str(tmp_path / "set")!r}, 2)
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(program))  # a file: a process of forkserver imports it
    parent = subprocess.Popen([sys.executable, tmp_path / "program.py"], stdin=subprocess.DEVNULL)
    pids = tmp_path / "pids"
    wait_until(lambda: pids.exists() and "\n" in pids.read_text())
    parent.kill()
    parent.wait()
    time.sleep(1)
    before = pids.read_text()
    time.sleep(1)
    assert pids.read_text() == before


class Endless(Failing):
    """Item 40 fails as soon as another process is in item 0, which never returns."""

    def __init__(self, items: list[bytes], ready: Path) -> None:
        super().__init__(items)
        self.ready = ready

    def __getitem__(self, index: Any) -> Any:
        if index == 0:
            self.ready.touch()
            while True:
                time.sleep(0.01)
        return super().__getitem__(index)

    def fail(self) -> None:
        while not self.ready.exists():
            time.sleep(0.01)
        raise KeyError("item 40 is missing")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="parts are written in one process")
def test_a_failed_dump_does_not_wait_for_processes_because_the_program_handles_sigterm(tmp_path: Path) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    begin = time.monotonic()
    try:
        with pytest.raises(KeyError, match="item 40"):
            dump(Endless(ITEMS, tmp_path / "ready"), tmp_path / "set", 2)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert time.monotonic() - begin < 30
    assert os.listdir(tmp_path) == ["ready"]
    assert seen == []


class Exits(Failing):
    def fail(self) -> None:
        os._exit(3)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="parts are written in one process")
@pytest.mark.parametrize("ignored", [False, True])
def test_a_process_that_ends_early_is_noticed_also_by_a_program_that_ignores_its_children(
    tmp_path: Path, ignored: bool
) -> None:
    # In a process of its own: multiprocessing takes children whose end it cannot notice for running ones.
    program = f"""
import os, signal, sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
from test_dump import ITEMS, Exits, dump
if {ignored}:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
try:
    dump(Exits(ITEMS), "set", 2)
except RuntimeError as error:
    print(error)
print(os.listdir())
"""
    folder = tmp_path / "work"
    folder.mkdir()
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr == ""
    assert done.stdout.endswith(f"ended early: exit code {None if ignored else 3}\n[]\n")


def test_items_that_are_no_bytes_are_an_error_and_leave_nothing(tmp_path: Path) -> None:
    for nfiles in (1, 3):
        with pytest.raises(TypeError, match="a record must be bytes"):
            dump([b"a", b"b", 3], tmp_path / "set.ffr", nfiles)
    assert os.listdir(tmp_path) == []


def test_a_folder_that_has_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "PART_00007.ffr").write_bytes(b"old")
    with pytest.raises(ValueError, match=r"not empty \(it has PART_00007\.ffr\)"):
        dump(ITEMS, tmp_path, 2)
    assert os.listdir(tmp_path) == ["PART_00007.ffr"]
    with pytest.raises(ValueError, match="not a folder"):
        dump(ITEMS, tmp_path / "PART_00007.ffr", 2)


@pytest.mark.parametrize("nfiles", [0, -1, 1.5, "2"])
def test_a_number_of_parts_that_is_none_is_refused(tmp_path: Path, nfiles: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        dump(ITEMS, tmp_path / "set", nfiles)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_dump_leaves_no_process_and_no_parts(tmp_path: Path, number: int) -> None:
    program = f"""
        import os, time
        from fffs.packing.dump import dump

        class Slow:
            def __len__(self): return 4000
            def __getitem__(self, k):
                if k % 2000 == 0: os.write(1, b"%d\\n" % os.getpid())
                time.sleep(0.001)
                return b"x"

        if __name__ == "__main__":
            dump(Slow(), {str(tmp_path / "set")!r}, 2)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    writers = {int(process.stdout.readline())}
    if len(os.sched_getaffinity(0)) > 1:
        writers.add(int(process.stdout.readline()))
    process.send_signal(number)
    try:
        assert process.wait(timeout=60) != 0
    finally:
        process.stdout.close()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in writers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in writers)
    assert not (tmp_path / "set").exists()
    dump(ITEMS, tmp_path / "set", 2)
    assert os.listdir(tmp_path) == ["set"]
