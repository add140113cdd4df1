"""Writers are all or nothing: if killed at any system call, if any call fails, and on disks of any size."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import io
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import differences, small_disk, snapshot
from inside import AtomicFile, AtomicFolder, atomic
from tracing import Call, Prepared, prepared

import fffs
import fffs.tfrecord
from fffs.errors import WriterError

FAST = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
# By default, calls that are equal except for numbers are disturbed once; with FFFS_ALL_CRASHES, at each occurrence.
ALL = bool(os.environ.get("FFFS_ALL_CRASHES"))

WRITERS = ("write", "pack", "unpack")
TEMPORARY = r"\.%s\.[0-9a-f]{12}\.fffs-tmp"
CLEANERS = ("unlink", "unlinkat", "rmdir")
# Calls that no file system fails with ENOSPC.
NEVER_FULL = ("flock", *CLEANERS)
HARMLESS = r"close|openat(?!.*O_CREAT)"
IN_PLACE = "complete and in place"
# The end of the message of unpack about a record that could not be read.
KEEP_GOING = "; nothing was unpacked (--keep-going unpacks the undamaged files)"


class Room:
    """A folder with a writer's target, and temporary files of a running and of a killed writer."""

    def __init__(self, process: Prepared, folder: Path, kind: str, old: bool) -> None:
        self.process, self.folder, self.kind = process, folder / "room", kind
        self.name = "out" if kind == "unpack" else "out.ffr"
        self.target = self.folder / self.name
        self.command = {
            "write": ["write", self.target],
            "pack": ["pack", "-q", folder / "f", self.target],
            "unpack": ["unpack", "-q", folder / "p.ffr", self.target],
            "convert": ["convert", "-q", "-j", "1", "--force", "--verify", folder / "r.tfrecord", self.target],
        }[kind]
        self.old = old
        self.living, self.dead = (f".{self.name}.{letter * 12}.fffs-tmp" for letter in "ad")
        self.folder.mkdir()
        self._temporary(self.living)
        self._lock = os.open(self.folder / self.living, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.reset()
        self.before = state(self.target)
        assert process.run(*self.command).code == 0
        self.after = state(self.target)
        assert self.after not in (None, self.before)
        self.reset()

    def close(self) -> None:
        os.close(self._lock)
        clean(self.folder)

    def _temporary(self, name: str) -> None:
        path = self.folder / name
        if self.kind != "unpack":
            path.write_bytes(b"half of it")
            return
        (path / "sub" / "sub").mkdir(parents=True)
        (path / "sub" / "sub" / "file").write_bytes(b"half of it")
        (path / "sub" / "sub").chmod(0)

    def reset(self) -> None:
        """Restore the state before the first run."""
        for name in os.listdir(self.folder):
            if name != self.living:
                clean(self.folder / name)
        if self.old:
            self.target.mkdir() if self.kind == "unpack" else self.target.write_bytes(b"older")
            os.utime(self.target, ns=(1, 1))
        self._temporary(self.dead)
        self._dead = (self.folder / self.dead).stat().st_ino

    def leftovers(self) -> set[str]:
        """Return the names beside the target except that of the running writer's file, after checking their form.

        The file of the killed writer counts under its old name, even if it was renamed for removal.
        """
        names = set(os.listdir(self.folder)) - {self.name}
        assert self.living in names
        for name in names:
            assert re.fullmatch(TEMPORARY % re.escape(self.name), name)
        return {
            self.dead if (self.folder / name).lstat().st_ino == self._dead else name for name in names - {self.living}
        }

    def assert_next_run_succeeds(self) -> None:
        """It also removes all leftovers, but not the file of the running writer."""
        if self.kind == "unpack" and state(self.target) == self.after:
            clean(self.target)  # an existing folder is never replaced
        outcome = self.process.run(*self.command)
        assert (outcome.code, outcome.stderr) == (0, "")
        assert state(self.target) == self.after
        assert self.leftovers() == set()

    def calls(self) -> list[Call]:
        """Return the calls of an undisturbed run that are to be disturbed."""
        outcome = self.process.trace(*self.command)
        assert (outcome.code, outcome.stderr) == (0, "")
        assert state(self.target) == self.after
        # Without calls on standard streams and the end of reading.
        own = [call for call in outcome.calls if not re.match(r"[012]<|\d+<[^>]*/p\.ffr>$", call.arguments)]
        last = {call.site: call for call in own}
        return own if ALL else [call for call in own if last[call.site] is call]

    def killing_calls(self) -> list[Call]:
        """Return the calls before which the writer is killed: those that change something, and the last one."""
        calls = self.calls()
        return calls if ALL else [call for call in calls if not re.match(HARMLESS, call.site)] + calls[-1:]


def state(path: Path) -> Any:
    """Return the state of a path: missing, bytes, or a folder with its content."""
    if path.is_dir():
        return snapshot(path)
    return path.read_bytes() if path.exists() else None


def clean(path: Path) -> None:
    subprocess.run(["rm", "-rf", path], check=True)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    with prepared(tmp_path_factory.mktemp("tracing")) as process:
        yield process


@pytest.fixture(scope="module")
def workplace(process: Prepared) -> Iterator[Path]:
    """A folder to pack, and its pack."""
    with tempfile.TemporaryDirectory(dir=FAST) as name:
        folder = Path(name, "f")
        (folder / "sub" / "empty").mkdir(parents=True)
        (folder / "a").write_bytes(b"first")
        (folder / "hard").hardlink_to(folder / "a")
        (folder / "sub" / "large").write_bytes(bytes(range(256)) * 5000)
        (folder / "sub" / "link").symlink_to("../a")
        (folder / "sub").chmod(0o750)
        assert process.run("pack", "-q", folder, Path(name, "p.ffr")).code == 0
        with fffs.tfrecord.TFRecordWriter(Path(name, "r.tfrecord")) as writer:
            for record in (b"first", bytes(range(256)) * 5000, b""):
                writer.write_one(record)
        yield Path(name)


@pytest.fixture(params=WRITERS)
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@contextlib.contextmanager
def room_for(process: Prepared, workplace: Path, kind: str, old: bool) -> Iterator[Room]:
    room = Room(process, workplace, kind, old)
    try:
        yield room
    finally:
        room.close()


# ---------------------------------------------------------------- killed


@pytest.mark.parametrize("old", [False, True])
def test_a_writer_killed_at_any_call_leaves_the_old_or_the_new(
    process: Prepared, workplace: Path, kind: str, old: bool
) -> None:
    with room_for(process, workplace, kind, old) as room:
        seen = set()
        for call in room.killing_calls():
            room.reset()
            outcome = process.trace(*room.command, inject=f"{call.name}:signal=KILL:when={call.number}")
            assert outcome.code == -9, call
            found = state(room.target)
            assert found in (room.before, room.after), call
            seen.add(found == room.after)
            assert len(room.leftovers() - {room.dead}) <= (found == room.before), call
            room.assert_next_run_succeeds()
        assert seen == {False, True}


@pytest.mark.parametrize("old", [False, True])
def test_a_conversion_killed_at_any_call_leaves_the_old_or_the_new(
    process: Prepared, workplace: Path, old: bool
) -> None:
    with room_for(process, workplace, "convert", old) as room:
        seen = set()
        for call in room.killing_calls():
            room.reset()
            outcome = process.trace(*room.command, inject=f"{call.name}:signal=KILL:when={call.number}")
            found = state(room.target)
            if outcome.code == 0:  # the call is in a thread, and strace counts the calls of each thread
                assert found == room.after, call
                continue
            assert outcome.code == -9, call
            assert found in (room.before, room.after), call
            seen.add((found == room.after, len(room.leftovers() - {room.dead})))
            room.assert_next_run_succeeds()
        assert {new for new, _ in seen} == {False, True}
        assert {left for _, left in seen} == {0, 1}


def test_a_conversion_of_which_any_call_fails_leaves_the_old(process: Prepared, workplace: Path) -> None:
    with room_for(process, workplace, "convert", old=True) as room:
        codes = set()
        for call in room.calls():
            room.reset()
            outcome = process.trace(*room.command, inject=f"{call.name}:error=EIO:when={call.number}")
            codes.add(outcome.code)
            assert outcome.code in (0, 6, 7), (call, outcome.stderr)
            found = state(room.target)
            replaced = outcome.code == 0 or IN_PLACE in outcome.stderr
            assert found == (room.after if replaced else room.before), (call, outcome.stderr)
            assert not room.leftovers() - {room.dead} or call.name in CLEANERS, call
            room.assert_next_run_succeeds()
        assert codes >= {0, 6, 7}


# ---------------------------------------------------------------- failing


@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_a_writer_of_which_any_call_fails_names_the_file_and_leaves_the_old(
    process: Prepared, workplace: Path, kind: str, error: str
) -> None:
    words = {"EIO": "Input/output error", "ENOSPC": "No space left on device"}[error]
    with room_for(process, workplace, kind, old=True) as room:
        codes = set()
        for call in room.calls():
            if error == "ENOSPC" and (call.name in NEVER_FULL or re.match(HARMLESS, call.site)):
                continue
            room.reset()
            outcome = process.trace(*room.command, inject=f"{call.name}:error={error}:when={call.number}")
            codes.add(outcome.code)
            assert outcome.code in (0, 6, 7), (call, outcome.stderr)
            left = room.leftovers() - {room.dead}
            assert not left or call.name in CLEANERS, call
            if outcome.code == 0:  # the failed call concerned a leftover, or a descriptor that was only read
                assert (state(room.target), outcome.stderr) == (room.after, ""), call
            else:
                said = (
                    outcome.stderr.replace(KEEP_GOING, "") if kind == "unpack" and outcome.code == 6 else outcome.stderr
                )
                assert re.fullmatch(rf"fffs: {workplace}/[^:]*: cannot [^\n]*{words}\n", said), said
                assert state(room.target) == (room.after if IN_PLACE in outcome.stderr else room.before), call
            room.assert_next_run_succeeds()
        assert 7 in codes


def test_a_folder_that_cannot_be_synced_is_said_to_have_the_new_in_it(
    process: Prepared, workplace: Path, kind: str
) -> None:
    with room_for(process, workplace, kind, old=True) as room:
        last = [call for call in room.calls() if call.name == "fsync"][-1]
        room.reset()
        outcome = process.trace(*room.command, inject=f"fsync:error=EIO:when={last.number}")
        assert outcome.code == 7
        assert IN_PLACE in outcome.stderr
        assert state(room.target) == room.after
        room.reset()
        assert process.trace(*room.command, inject=f"fsync:error=EINVAL:when={last.number}").code == 0, "some have none"


# ---------------------------------------------------------------- the order of calls


def test_what_was_written_is_synced_before_the_rename_and_the_folder_after_it(
    process: Prepared, workplace: Path, kind: str
) -> None:
    with room_for(process, workplace, kind, old=True) as room:
        clean(room.folder / room.dead)
        calls = process.trace(*room.command).calls
        ours = re.compile(
            rf"{re.escape(str(room.folder))}/\.{re.escape(room.name)}\.(?!a{{12}})[0-9a-f]{{12}}\.fffs-tmp"
        )
        (rename,) = [k for k, call in enumerate(calls) if call.name.startswith("rename")]
        changes = [k for k, call in enumerate(calls) if call.name in CHANGES and ours.search(call.arguments)]
        writes = [k for k in changes if calls[k].name in ("write", "pwrite64", "pwritev")]
        assert len(writes) >= 3
        syncs = [k for k, call in enumerate(calls) if call.name == "fsync" and ours.search(call.arguments)]
        assert len(syncs) == 1
        assert syncs[0] < rename
        if kind == "unpack":
            (everything,) = [k for k, call in enumerate(calls) if call.name == "syncfs"]
            # In between, only the mode and the time of the folder itself are set.
            assert [calls[k].name for k in changes if k > everything] == ["fchmod", "utimensat"]
            assert max(changes) < syncs[0]
        else:
            assert max(changes) < syncs[0]
        after = [call for call in calls[rename + 1 :] if call.name not in ("openat", "close", "flock", "unlinkat")]
        assert [(call.name, re.sub(r"^\d+", "", call.arguments)) for call in after[:1]] == [
            ("fsync", f"<{room.folder}>")
        ]
        assert all(call.name == "write" and re.match("[12]<", call.arguments) for call in after[1:])


CHANGES = [
    "write",
    "pwrite64",
    "pwritev",
    "ftruncate",
    "fallocate",
    "fchmod",
    "fchmodat",
    "utimensat",
    "mkdirat",
    "linkat",
    "symlinkat",
]  # calls on files; the rename is checked separately


def test_files_and_folders_are_made_for_their_user_alone(process: Prepared, workplace: Path, kind: str) -> None:
    """They are not created with more permissions first: other users could open them before these are removed."""
    with room_for(process, workplace, kind, old=True) as room:
        calls = process.trace(*room.command).calls
    modes = [call.arguments[-4:] for call in calls if call.name.startswith("mkdir")]
    assert modes == (["0700"] * 3 if kind == "unpack" else [])
    made = [call.arguments for call in calls if call.name == "openat" and "O_CREAT" in call.arguments]
    assert len(made) == (2 if kind == "unpack" else 1)
    for arguments in made:
        assert re.search(r"O_CREAT\|O_EXCL\|O_NOFOLLOW.*, 0600$", arguments)


# ---------------------------------------------------------------- full


def test_a_disk_of_any_size_takes_all_or_nothing(process: Prepared, workplace: Path, kind: str, tmp_path: Path) -> None:
    """The disk has from one page to as many as are needed."""
    with room_for(process, workplace, kind, old=False) as room, small_disk(tmp_path / "disk", 1 << 30) as disk:
        target = disk / room.name
        command = [target if part == room.target else part for part in room.command]
        failed = 0
        for pages in (*range(1, 12), *range(300, 400)):
            subprocess.run(["mount", "-o", f"remount,size={pages * 4096}", disk], check=True)
            outcome = process.run(*command)
            if outcome.code == 0:
                break
            failed += 1
            assert outcome.code == 7
            assert re.fullmatch(rf"fffs: {disk}/[^:]*: cannot write: No space left on device\n", outcome.stderr)
            assert os.listdir(disk) == []
        assert failed > 11
        assert state(target) == room.after
        assert os.listdir(disk) == [room.name]


def test_a_disk_of_any_number_of_files_takes_all_or_nothing(process: Prepared, workplace: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 30) as disk:
        codes = []
        for files in range(1, 12):  # the mark of the unfinished folder takes room, too
            subprocess.run(["mount", "-o", f"remount,nr_inodes={files}", disk], check=True)
            outcome = process.run("unpack", "-q", workplace / "p.ffr", disk / "out")
            codes.append(outcome.code)
            if outcome.code == 7:
                assert re.fullmatch(rf"fffs: {disk}/out[^:]*: cannot write: No space left on device\n", outcome.stderr)
                assert os.listdir(disk) == []
        assert differences(snapshot(disk / "out"), snapshot(workplace / "f")) == {}
        assert sorted(set(codes)) == [0, 2, 7], "2: at last it is there already"


def test_files_of_any_largest_size_are_complete_or_an_error(process: Prepared, workplace: Path, kind: str) -> None:
    """The write that reaches the limit is short, and only the next one fails."""
    with room_for(process, workplace, kind, old=False) as room:
        largest = 256 * 5000 if kind == "unpack" else len(room.after)
        for limit in (0, 1, 47, 100, largest // 2, largest - 1):
            room.reset()
            outcome = process.run(*room.command, limit=limit)
            assert outcome.code == 7, limit
            assert re.fullmatch(rf"fffs: {room.folder}/out[^:]*: cannot write: File too large\n", outcome.stderr)
            assert state(room.target) is None
            assert room.leftovers() == set()
        room.reset()
        assert process.run(*room.command, limit=largest).code == 0
        assert state(room.target) == room.after


# ---------------------------------------------------------------- interrupted


@pytest.mark.parametrize("kind", ["pack", "unpack", "convert"])
def test_a_command_interrupted_at_any_call_leaves_the_old_or_the_new_and_nothing_else(
    process: Prepared, workplace: Path, kind: str
) -> None:
    with room_for(process, workplace, kind, old=True) as room:
        codes = set()
        for call in room.calls():
            room.reset()
            outcome = process.trace(*room.command, inject=f"{call.name}:signal=INT:when={call.number}")
            codes.add(outcome.code)
            assert (outcome.code, outcome.stderr) in ((0, ""), (130, "fffs: interrupted\n")), call
            assert state(room.target) in ((room.after,) if outcome.code == 0 else (room.before, room.after)), call
            assert not room.leftovers() - {room.dead}, call
        assert 130 in codes


def test_a_file_that_is_interrupted_while_it_is_put_in_place_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_fd: int) -> None:
        raise KeyboardInterrupt

    writer = fffs.FileWriter(tmp_path / "out.ffr", 0)
    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        writer.close()
    assert os.listdir(tmp_path) == []


def test_a_file_that_is_interrupted_while_it_is_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_fd: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(atomic, "WriteBack", interrupt)
    with pytest.raises(KeyboardInterrupt):
        AtomicFile(tmp_path / "x")
    gc.collect()
    assert os.listdir(tmp_path) == []


def test_a_folder_that_nobody_discarded_is_removed_but_not_by_a_child(tmp_path: Path) -> None:
    folder = AtomicFolder(str(tmp_path / "x"), "x")
    if (child := os.fork()) == 0:
        del folder
        os._exit(not os.listdir(tmp_path))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    del folder
    assert os.listdir(tmp_path) == []


class _Interrupted(io.BufferedWriter):
    """Writes half of a record, then simulates Ctrl-C."""

    def write(self, data: Any) -> int:
        super().write(data[:3])
        raise KeyboardInterrupt


def test_a_record_that_was_interrupted_ends_the_file(tmp_path: Path) -> None:
    """It is unknown how much of the record was written, so later records would be at wrong offsets."""
    (tmp_path / "out.ffr").write_bytes(b"older")
    writer = fffs.FileWriter(tmp_path / "out.ffr", 2)
    writer.write_one(b"first")
    original = writer._stream
    original.flush()
    writer._stream = _Interrupted(original.raw)
    with pytest.raises(KeyboardInterrupt):
        writer.write_one(b"second")
    assert writer.closed
    with pytest.raises(WriterError):
        writer.write_one(b"second")
    writer.close()
    assert os.listdir(tmp_path) == ["out.ffr"]
    assert (tmp_path / "out.ffr").read_bytes() == b"older"


def test_a_new_working_folder_does_not_lead_a_writer_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    with fffs.FileWriter("out.ffr", 1) as writer:
        os.chdir("other")
        writer.write_one(b"record")
    assert os.listdir() == []
    assert sorted(os.listdir(tmp_path)) == ["other", "out.ffr"]
