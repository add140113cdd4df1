"""Packing with ``keep_going``: what cannot be read, or changes meanwhile, is left out, named, and counted."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from builders import as_nobody, contents
from inside import PlanFolder, open_source, run_program
from set_sources import files_of

import fffs
from fffs.errors import Exit, ReadError, UsageError

BLOCK = 1 << 20
COUNT = 20


def fill(folder: Path) -> Path:
    """Make a folder with four folders of five files, the first of which is large."""
    for k in range(COUNT):
        path = folder / f"day{k // 5}" / f"{k:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([k]) * (BLOCK + 1 if k % 5 == 0 else 3000))
    return folder


@pytest.fixture
def public(in_public: Path) -> Path:
    """A folder of any user, with ``photos``, in which some things cannot be read."""
    photos = fill(in_public / "photos")
    for options in ({}, {"parts": 1}):  # what is imported now, nobody need be able to read
        fffs.pack_folder(photos, in_public / "a.ffr", **options)
        shutil.rmtree(in_public / "a.ffr") if options else (in_public / "a.ffr").unlink()
    for name in ("day1/07.jpg", "day1/08.jpg", "day2/10.jpg"):
        (photos / name).chmod(0)
    os.link(photos / "day1" / "07.jpg", photos / "day1" / "again.jpg")
    (photos / "day3").chmod(0)
    in_public.chmod(0o777)
    return in_public


UNREAD = 4  # a file with two names, two files, and a folder


def readable(folder: Path) -> dict[bytes, bytes | None]:
    """Return what a pack of that folder has: of each path its bytes, None for folders."""
    found = contents(fill(folder))
    lost = (b"day1/07.jpg", b"day1/08.jpg", b"day2/10.jpg", b"day3/")
    return {path: data for path, data in found.items() if not path.startswith(lost)}


def unpacked(source: Path, target: Path) -> dict[bytes, bytes | None]:
    """Return the same of a pack or set."""
    with fffs.load_source(source) as opened:
        fffs.unpack(opened, target)
    return contents(target)


@pytest.mark.parametrize("parts", [None, 1, 4])
@pytest.mark.parametrize("pool", [False, True])
def test_what_cannot_be_read_is_left_out_and_named(public: Path, tmp_path: Path, parts: int | None, pool: bool) -> None:
    if pool and not parts:
        return
    lines: list[str] = []
    options: dict[str, Any] = {"parts": parts, "executor": ThreadPoolExecutor(2) if pool else None}
    for name in ("a.ffr", "b.ffr"):
        with as_nobody(public):
            summary = fffs.pack_folder("photos", name, keep_going=True, warn=lines.append, **options)
        assert (summary.unread, summary.changed) == (UNREAD, 0)
    assert sorted(lines)[::2] == sorted(lines)[1::2]  # the second time as the first
    assert len(lines) == 2 * UNREAD
    for name in ("day1/07.jpg", "day1/08.jpg", "day2/10.jpg", "day3"):
        assert sum(f"{name}: " in line and "left out" in line for line in lines) == 2
    assert unpacked(public / "a.ffr", tmp_path / "out") == readable(tmp_path / "expected")
    if parts is None:
        assert (public / "a.ffr").read_bytes() == (public / "b.ffr").read_bytes()
    else:
        assert sorted(files_of(public / "a.ffr").values()) == sorted(files_of(public / "b.ffr").values())


@pytest.mark.parametrize("parts", [None, 4])
def test_without_it_the_error_names_what_cannot_be_read(public: Path, parts: int | None) -> None:
    with as_nobody(public), pytest.raises(ReadError, match=r"day[123]"):
        fffs.pack_folder("photos", "a.ffr", parts=parts)
    assert os.listdir(public) == ["photos"]


def change_when_packing(path: Path, change: Callable[[Path], object]) -> Callable[[int, int], None]:
    """Return a progress that changes a file when the first bytes are packed."""
    changed: list[object] = []
    return lambda done, _: not done or changed or changed.append(change(path))  # type: ignore[func-returns-value]


CHANGES: dict[str, Callable[[Path], object]] = {
    "written": lambda path: path.write_bytes(b"other"),
    "removed": lambda path: path.unlink(),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a link": lambda path: (path.unlink(), path.symlink_to("x")),
    "its folder": lambda path: path.parent.rename(path.parent.with_name("x")),
}


@pytest.mark.parametrize("parts", [None, 1])
@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_meanwhile_is_left_out(tmp_path: Path, parts: int | None, change: str) -> None:
    source = fill(tmp_path / "photos")
    lines: list[str] = []
    progress = change_when_packing(source / "day3" / "16.jpg", CHANGES[change])
    summary = fffs.pack_folder(
        source, tmp_path / "a.ffr", keep_going=True, parts=parts, jobs=1, progress=progress, warn=lines.append
    )
    lost = 5 if change == "its folder" else 1
    assert (summary.unread, summary.changed, summary.files) == (0, lost, COUNT - lost)
    assert len(lines) == lost
    expected = contents(fill(tmp_path / "again"))
    for k in range(15, 20) if change == "its folder" else (16,):
        del expected[b"day3/%d.jpg" % k]
    assert unpacked(tmp_path / "a.ffr", tmp_path / "out") == expected


def test_a_change_after_the_plan_is_packed_as_it_is_and_counted(tmp_path: Path) -> None:
    source = fill(tmp_path / "photos")
    plan = fffs.plan_pack(source, tmp_path / "set", 4, keep_going=True)
    (source / "day0" / "03.jpg").write_bytes(b"other")
    results = plan.commit([fffs.PackPlan.from_json(plan.to_json()).tasks[k].run() for k in range(4)])
    assert [result.changed for result in results] == [1, 0, 0, 0]
    assert "day0/03.jpg" in results[0].left_out[0]
    assert unpacked(tmp_path / "set", tmp_path / "out") == contents(source)


def test_a_file_that_changes_all_the_time_is_left_out_at_once(tmp_path: Path) -> None:
    source = fill(tmp_path / "photos")
    busy = source / "day0" / "00.jpg"  # it is copied in pieces
    summary = fffs.pack_folder(
        source,
        tmp_path / "a.ffr",
        keep_going=True,
        jobs=1,
        progress=lambda *_: busy.write_bytes(busy.read_bytes()),
        warn=lambda _: None,
    )
    assert summary.changed <= 1


def test_a_lack_of_descriptors_or_memory_leaves_out_nothing(tmp_path: Path) -> None:
    left_out: list[Exception] = []
    with open_source(os.fsencode(fill(tmp_path / "photos")), left_out.append) as source:
        for number in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            with pytest.raises(ReadError):
                source.fail(OSError(number, os.strerror(number)), b"day0")
        for number in (errno.EACCES, errno.EIO):
            source.fail(OSError(number, os.strerror(number)), b"day0")
        with pytest.raises(ReadError):  # the folder itself
            source.fail(OSError(errno.EIO, os.strerror(errno.EIO)), b"")
    assert len(left_out) == 2


@pytest.fixture
def quiet(capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Check that commands name what they leave out."""
    yield
    assert "left out" in capsys.readouterr().err


@pytest.mark.usefixtures("quiet")
def test_the_exit_status_says_that_something_was_left_out(public: Path) -> None:
    shutil.rmtree(public / "photos" / "day3")
    with as_nobody(public):
        assert run_program(["pack", "--keep-going", "photos", "a.ffr"]) == Exit.READ
        assert run_program(["pack", "--keep-going", "--parts", "3", "photos", "set"]) == Exit.READ
        assert run_program(["plan", "pack", "--keep-going", "--parts", "3", "photos", "b"]) == Exit.OK
        assert run_program(["plan", "run", "b"]) == Exit.OK
        assert run_program(["plan", "commit", "b"]) == Exit.READ
        assert sorted(files_of(Path("b")).values()) == sorted(files_of(Path("set")).values())


def test_objects_are_not_left_out(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="keep_going"):
        fffs.pack_folder("s3://bucket/folder/", tmp_path / "a.ffr", keep_going=True)


def test_a_result_of_an_attempt_that_left_out_something_else(tmp_path: Path) -> None:
    """Two attempts at a task met different failures: the part of one does not count with the result of the other."""
    (tmp_path / "photos").mkdir()
    for name in "abcd":
        (tmp_path / "photos" / name).write_bytes(name.encode() * 1000)
    plan = fffs.plan_pack(tmp_path / "photos", tmp_path / "set", 1, keep_going=True)
    result = plan.tasks[0].run()
    part = Path(PlanFolder(plan.target).part(*plan.parts[0]))
    data = bytearray(part.read_bytes())
    data[0] ^= 1
    part.write_bytes(data)
    with pytest.raises(UsageError, match="part 0 has vanished or changed"):
        plan.commit([result])
    plan.commit([plan.tasks[0].run()])
    assert contents(tmp_path / "photos") == unpacked(tmp_path / "set", tmp_path / "out")
