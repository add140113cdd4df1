"""Sets of packs are all or nothing: killed at any system call, or if any fails, and the next run completes them."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from set_sources import files_of
from tracing import Call, Prepared, prepared

FAST = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
ALL = bool(os.environ.get("FFFS_ALL_CRASHES"))  # as in test_crash.py
DECISIVE = ("rename", "renameat", "renameat2", "linkat", "unlink", "unlinkat", "mkdir", "rmdir", "fsync", "ftruncate")
LEFT = {".set.fffs-plan", ".set.000000000000.fffs-tmp"}


class Room:
    """A folder, the command that packs it into two parts, and what comes out."""

    def __init__(self, process: Prepared, place: Path) -> None:
        self.process, self.place, self.target = process, place / "room", place / "room" / "set"
        for k in range(6):
            (place / "f" / f"day{k % 2}").mkdir(parents=True, exist_ok=True)
            (place / "f" / f"day{k % 2}" / str(k)).write_bytes(bytes([k]) * 1000)
        self.command = ["pack", "-q", "-j", "1", "--parts", "2", place / "f", self.target]
        self.place.mkdir()
        outcome = process.trace(*self.command)
        assert (outcome.code, outcome.stderr) == (0, "")
        self.expected = files_of(self.target)
        assert len(self.expected) == 2
        last = {call.site: call for call in outcome.calls}
        self._calls = outcome.calls
        if not ALL:
            self._calls = [call for call in last.values() if call.name in DECISIVE]

    def calls(self) -> list[Call]:
        """Return the calls that are disturbed."""
        return self._calls

    def reset(self) -> None:
        shutil.rmtree(self.place)
        self.place.mkdir()

    def is_complete(self) -> bool:
        """Return whether the target is there, and then complete; otherwise nothing but known leftovers is."""
        names = set(os.listdir(self.place))
        if "set" in names:
            assert files_of(self.target) == self.expected
        unknown = {name for name in names - {"set"} - LEFT if not re.fullmatch(r"\.set\.[0-9a-f]{12}\.fffs-tmp", name)}
        assert unknown == set()
        return "set" in names

    def finish(self) -> None:
        """The same command, or the end of a complete set, leaves the set and nothing else."""
        if self.is_complete():
            outcome = self.process.run("plan", "abort", self.target)
            assert outcome.code in (0, 3), outcome.stderr
            return
        outcome = self.process.run(*self.command)
        assert (outcome.code, outcome.stderr) == (0, "")
        assert os.listdir(self.place) == ["set"]
        assert files_of(self.target) == self.expected


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    with prepared(tmp_path_factory.mktemp("tracing")) as process, tempfile.TemporaryDirectory(dir=FAST) as name:
        yield Room(process, Path(name))


def test_a_driver_killed_at_any_call_leaves_no_set_or_a_complete_one(room: Room) -> None:
    seen = set()
    for call in room.calls():
        room.reset()
        outcome = room.process.trace(*room.command, inject=f"{call.name}:signal=KILL:when={call.number}")
        assert outcome.code == -9, call
        seen.add(room.is_complete())
        room.finish()
        assert os.listdir(room.place) == ["set"], call
    assert seen == {False, True}


def test_an_interrupt_at_any_call_leaves_what_the_next_run_uses_and_nothing_else(room: Room) -> None:
    """Ctrl-C, which is an exception in Python after the call."""
    seen = set()
    for call in room.calls():
        room.reset()
        outcome = room.process.trace(*room.command, inject=f"{call.name}:signal=INT:when={call.number}")
        seen.add((outcome.code, room.is_complete()))
        assert "Traceback" not in outcome.stderr, call
        assert set(os.listdir(room.place)) <= {"set", ".set.fffs-plan"}, call
        room.finish()
    assert (130, False) in seen


def test_a_call_that_fails_leaves_no_set_or_a_complete_one(room: Room) -> None:
    codes = set()
    for call in room.calls():
        room.reset()
        outcome = room.process.trace(*room.command, inject=f"{call.name}:error=EIO:when={call.number}")
        codes.add(outcome.code)
        assert outcome.code in (0, 6, 7, 2, 3), (call, outcome.stderr)
        assert outcome.stderr.count("\n") == (outcome.code != 0), (call, outcome.stderr)
        room.finish()
    assert codes >= {0, 7}
