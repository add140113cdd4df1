"""Verification divided into tasks."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from builders import record_file

import fffs
from fffs.errors import FormatError, SourceNotFoundError, UsageError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four parts of ten records, of which two are damaged."""
    folder = tmp_path / "parts"
    folder.mkdir()
    for k in range(4):
        data = bytearray(record_file([bytes([k, j]) * 100 for j in range(10)]))
        if k in (1, 3):
            data[data.index(bytes([k, 7]) * 100) + 5] ^= 1
        (folder / f"p-0000{k}-of-00004.ffr").write_bytes(data)
    return folder


def test_tasks_in_any_order_find_what_verifying_all_finds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    plan = fffs.plan_verify("parts")
    assert [Path(task.path).name for task in plan.tasks] == sorted(path.name for path in folder.iterdir())
    assert plan.total_bytes == sum(path.stat().st_size for path in folder.iterdir())
    monkeypatch.chdir("/")
    copies = pickle.loads(pickle.dumps(fffs.VerifyPlan.from_json(plan.to_json())))
    assert copies == plan
    results = [pickle.loads(pickle.dumps(task.run())) for task in copies.tasks[::-1]]
    found = plan.commit(results)
    assert (found.records, found.unverifiable) == (40, 0)
    assert [(Path(bad.source).name, bad.record, bad.number) for bad in found.bad] == [
        ("p-00001-of-00004.ffr", 7, 17),
        ("p-00003-of-00004.ffr", 7, 37),
    ]
    plan.abort()
    with pytest.raises(UsageError, match=r"p-00002-of-00004\.ffr: was not verified; run task 2 first"):
        plan.commit([result for result in results if result.number != 2])


def test_what_is_no_plan_and_no_source(folder: Path) -> None:
    plan = json.loads(fffs.plan_verify([folder]).to_json())
    for text in ("", "[]", "{}", "null", json.dumps({**plan, "format": "x"}), json.dumps({**plan, "tasks": [{}]})):
        with pytest.raises(FormatError, match="plan"):
            fffs.VerifyPlan.from_json(text)
    with pytest.raises(SourceNotFoundError):
        fffs.plan_verify(folder / "missing" / "x.ffr").tasks[0].run()
    (folder / "p-00002-of-00004.ffr").unlink()
    with pytest.raises(SourceNotFoundError, match="part 2 missing"):
        fffs.plan_verify(folder)
