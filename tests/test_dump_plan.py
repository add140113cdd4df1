"""Writing a data set of Python as parts: plan, run, commit."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import split_records
from inside import place_of, run_program

import fffs
from fffs.errors import Exit, FormatError, SourceChangedError, UsageError

MODULE = """
import os
import random

ITEMS = [bytes([k]) * (k * 37 % 101) for k in range(50)]

def train():
    return ITEMS[: int(os.environ.get("COUNT", 50))]

class Sets:
    @staticmethod
    def small():
        return ITEMS[:3]

class Random:
    def __len__(self):
        return 4
    def __getitem__(self, i):
        return random.randbytes(100)

drawn = Random()
number = 5
def nothing():
    return None
def renamed():
    return ITEMS
other, renamed = renamed, None
"""
ITEMS = [bytes([k]) * (k * 37 % 101) for k in range(50)]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module that can be imported."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "its_samples.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))
    yield "its_samples"
    sys.modules.pop("its_samples", None)


def records_of(folder: Path) -> list[bytes]:
    return [record for path in sorted(folder.iterdir()) for record in split_records(path.read_bytes())]


def part_of(task: Any) -> Path:
    """Return the path of a part before the commit."""
    return Path(place_of(task.target).part(task.name, task.mark))


def test_tasks_in_any_order_write_all_items(tmp_path: Path, module: str) -> None:
    import its_samples  # type: ignore[import-not-found]

    plan = fffs.plan_dump(its_samples.train, tmp_path / "set", 7)
    assert plan == fffs.DumpPlan.load(tmp_path / "set") == pickle.loads(pickle.dumps(plan))
    assert plan == fffs.DumpPlan.from_json(plan.to_json())
    results = [task.run() for task in plan.tasks[::-1]]
    assert results[::-1] == [task.run() for task in plan.tasks]  # complete parts are left as they are
    assert not (tmp_path / "set").exists()
    done = plan.commit(results)
    assert sum(result.total_bytes for result in done) == sum(map(len, ITEMS))
    assert [Path(result.path).name for result in done] == [f"set-{k:05}-of-00007.ffr" for k in range(7)]
    assert records_of(tmp_path / "set") == ITEMS
    assert [record.tobytes() for record in fffs.FileReader(tmp_path / "set").read(range(50))] == ITEMS
    assert sorted(os.listdir(tmp_path)) == ["modules", "set"]


def test_a_damaged_part_is_written_again(tmp_path: Path, module: str) -> None:
    plan = fffs.plan_dump(f"{module}:train", tmp_path / "set", 3)
    results = [task.run() for task in plan.tasks]
    part = part_of(plan.tasks[1])
    data = bytearray(part.read_bytes())
    data[-1] ^= 1
    part.write_bytes(data)
    assert plan.tasks[1].run().checksum == results[1].checksum
    plan.commit()
    assert records_of(tmp_path / "set") == ITEMS


def test_items_that_differ_between_attempts_make_one_of_them(tmp_path: Path, module: str) -> None:
    plan = fffs.plan_dump(f"{module}:drawn", tmp_path / "set", np.int64(2))  # type: ignore[arg-type]
    first = plan.tasks[0].run()
    part_of(plan.tasks[0]).unlink()
    second = plan.tasks[0].run()
    assert first.checksum != second.checksum
    last = plan.tasks[1].run()
    with pytest.raises(UsageError, match="part 0 has vanished or changed"):
        plan.commit([first, last])
    plan.commit([second, last])


def test_a_new_plan_for_the_same_items_keeps_complete_parts(tmp_path: Path, module: str) -> None:
    plan = fffs.plan_dump(f"{module}:train", tmp_path / "set", 3)
    done = [task.run() for task in plan.tasks[:2]]
    again = fffs.plan_dump(f"{module}:train", tmp_path / "set", 3)
    assert [task.result() for task in again.tasks] == [*done, None]
    with pytest.raises(UsageError, match="another number of parts"):
        fffs.plan_dump(f"{module}:train", tmp_path / "set", 4)
    again.abort()


def test_more_or_fewer_items_than_planned_are_an_error(
    tmp_path: Path, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = fffs.plan_dump(f"{module}:train", tmp_path / "set", 3)
    monkeypatch.setenv("COUNT", "49")
    with pytest.raises(SourceChangedError, match="has 49 items, and had 50"):
        plan.tasks[2].run()
    plan.abort()
    assert os.listdir(tmp_path) == ["modules"]


@pytest.mark.parametrize(("name", "items"), [("Sets.small", 3), ("ITEMS", 50)])
def test_what_a_name_may_be(tmp_path: Path, module: str, name: str, items: int) -> None:
    plan = fffs.plan_dump(f"{module}:{name}", tmp_path / "set", 4)
    assert (plan.items, len(plan.tasks)) == (items, min(items, 4))
    plan.abort()


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("train", "not the name"),
        (":train", "not the name"),
        ("its_samples:", "not the name"),
        (".its_samples:train", "not the full name of a module"),
        ("its_samples..x:train", "not the full name of a module"),
        ("its_samples:none", "has no none"),
        ("its_samples:number", "is or returns a int"),
        ("its_samples:nothing", "is or returns a NoneType"),
        ("no_such_module_:train", "PYTHONPATH"),
        (lambda: ITEMS, "has no <lambda>"),
        (ITEMS, "has no name"),
    ],
    ids=[
        "no module",
        "empty module",
        "empty name",
        "relative",
        "empty step",
        "missing",
        "number",
        "nothing",
        "no such module",
        "lambda",
        "list",
    ],
)
def test_what_has_no_name_or_is_no_data_set_is_refused(tmp_path: Path, module: str, name: object, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        fffs.plan_dump(name, tmp_path / "set", 2)  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == ["modules"]


def test_a_function_that_its_name_does_not_lead_to_is_refused(tmp_path: Path, module: str) -> None:
    import its_samples

    with pytest.raises(UsageError, match="is not the function that was given"):
        fffs.plan_dump(its_samples.other, tmp_path / "set", 2)
    its_samples.train.__module__ = "__main__"
    with pytest.raises(UsageError, match="main script"):
        fffs.plan_dump(its_samples.train, tmp_path / "set", 2)


def test_no_items_are_an_empty_part(tmp_path: Path, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNT", "0")
    plan = fffs.plan_dump(f"{module}:train", tmp_path / "set", 5)
    plan.commit([task.run() for task in plan.tasks])
    assert fffs.FileReader(tmp_path / "set").n == 0


def test_steps_on_the_command_line(tmp_path: Path, module: str, capfd: pytest.CaptureFixture[str]) -> None:
    target = str(tmp_path / "set")
    assert run_program(["plan", "dump", "--parts", "4", f"{module}:train", target]) == Exit.OK
    assert "in 4 tasks, from 0 to 3" in capfd.readouterr().out
    for task in range(4):
        assert run_program(["plan", "run", target, "--task", str(task)]) == Exit.OK
        assert f"set-{task:05}-of-00004.ffr: 1" in capfd.readouterr().out
    assert run_program(["plan", "commit", target]) == Exit.OK
    assert capfd.readouterr().out.startswith(f"{target}: 50 records in 4 parts")
    assert records_of(tmp_path / "set") == ITEMS


def test_other_plans_are_refused(tmp_path: Path, module: str) -> None:
    (tmp_path / "f").mkdir()
    plan = fffs.plan_pack(tmp_path / "f", tmp_path / "packed", 1)
    with pytest.raises(FormatError, match="not a plan of this version to dump"):
        fffs.DumpPlan.from_json(plan.to_json())
    plan.abort()
