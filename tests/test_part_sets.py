"""Sets of packs: every way to open one shows one tree; and the commands that make one."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import pytest
from builders import contents, differences, snapshot
from inside import formats_sources, load_source
from mounting import Mounts
from set_sources import assert_same, grow
from weed import Weed, cloud, weed

import fffs
import fffs.torch
from fffs.errors import FormatError, SourceNotFoundError, UsageError

__all__ = ["cloud", "weed"]  # fixtures


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with three classes of four files."""
    folder = tmp_path / "photos"
    for kind in ("cat", "dog", "emu"):
        (folder / kind).mkdir(parents=True)
        for k in range(4):
            (folder / kind / f"{k}.jpg").write_bytes(f"{kind} {k}".encode() * 100)
    return folder


@pytest.fixture
def parts(source: Path, tmp_path: Path) -> Path:
    """A set of five parts, so that each class is in several."""
    fffs.pack_folder(source, tmp_path / "set", parts=5)
    return tmp_path / "set"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fffs", *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False
    )


def done(*arguments: object) -> str:
    result = run(*arguments)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def test_many_parts_are_opened_in_threads_and_the_first_bad_one_is_named(tmp_path: Path) -> None:
    for k in range(10):
        grow(tmp_path / "photos" / str(k), k)
    fffs.pack_folder(tmp_path / "photos", tmp_path / "set", parts=40)
    assert formats_sources.openers(os.listdir(tmp_path / "set")) > 1
    assert_same(tmp_path / "photos", tmp_path / "set", tmp_path / "copy")
    before = len(os.listdir("/proc/self/fd"))
    for number in (37, 21):
        with open(tmp_path / "set" / f"set-{number:05}-of-00040.ffr", "r+b") as file:
            file.write(b"\1\2\3\4")  # the checksum of the header
        with pytest.raises(FormatError, match=f"set-{number:05}"):
            fffs.open(tmp_path / "set")
    assert len(os.listdir("/proc/self/fd")) == before


def test_every_way_to_open_a_set_shows_one_tree(source: Path, parts: Path, tmp_path: Path) -> None:
    names = [f"{kind}/{k}.jpg" for kind in ("cat", "dog", "emu") for k in range(4)]
    expected = [(source / name).read_bytes() for name in names]
    assert len(os.listdir(parts)) == 5
    with fffs.PackedFolder(parts) as folder:
        assert folder.list(recursive=True, list_dir=False) == names
        assert folder.list() == ["cat", "dog", "emu"]
        assert [bytes(data) for data in folder.read(names)] == expected
        with pickle.loads(pickle.dumps(folder)) as again:
            assert [bytes(data) for data in again.read(names)] == expected
    with load_source(parts) as shown:
        assert shown.layout == "union" and shown.warnings == ()
    files = fsspec.filesystem("ffr", fo=str(parts))
    assert files.find("") == names
    assert list(files.cat(names).values()) == expected
    with fffs.open(parts) as reader:
        assert reader.n == len(names) + 5  # and the tree of each part
        assert bytes(reader.read_one(0)) == expected[0]
    assert_same(source, parts, tmp_path / "copy")


def test_a_set_is_a_data_set_for_training(source: Path, parts: Path) -> None:
    torch = pytest.importorskip("fffs.torch")
    photos = torch.PackedFolder(parts, transform=bytes)
    assert photos.classes == ["cat", "dog", "emu"]
    assert [label for _, label in (photos[[k]][0] for k in range(12))] == [0] * 4 + [1] * 4 + [2] * 4
    assert photos[[7]][0][0] == (source / "dog" / "3.jpg").read_bytes()


@pytest.mark.fuse
def test_a_set_in_a_mount(tmp_path: Path, mounts: Mounts) -> None:
    grow(tmp_path / "f", 5)
    fffs.pack_folder(tmp_path / "f", tmp_path / "set", parts=6)
    mounted = mounts(tmp_path / "set")
    assert not differences(
        {path: (mode, time, content) for path, (mode, time, content, _) in snapshot(tmp_path / "f").items()},  # type: ignore[misc]
        {path: (mode, time, content) for path, (mode, time, content, _) in snapshot(mounted).items()},  # type: ignore[misc]
    )


def test_a_set_in_a_store_is_one_tree(cloud: Weed, source: Path, parts: Path) -> None:
    for path in parts.iterdir():
        cloud.put(cloud.bucket, f"sets/photos/{path.name}", path.read_bytes())
    url = f"s3://{cloud.bucket}/sets/photos/"
    with fffs.PackedFolder(url) as folder:
        assert folder.num_files() == 12
        assert bytes(folder.read_one("emu/3.jpg")) == (source / "emu" / "3.jpg").read_bytes()
    cloud.delete(cloud.bucket, "sets/photos/set-00002-of-00005.ffr")
    with pytest.raises(SourceNotFoundError, match=r"set-\?+-of-00005\.ffr: part 2 missing"):
        fffs.PackedFolder(url)


# ---------------------------------------------------------------- incomplete sets


@pytest.mark.parametrize("missing", [(2,), (0,), (4,), (0, 1, 2, 3)])
def test_a_set_that_lacks_parts_is_an_error_that_names_them(parts: Path, missing: tuple[int, ...]) -> None:
    for number in missing:
        os.unlink(parts / f"set-0000{number}-of-00005.ffr")
    listed = ", ".join(map(str, missing))
    message = rf"set-\?+-of-00005\.ffr: part {listed} missing \(there are {5 - len(missing)} of 5\)"
    ways: list[Any] = [
        fffs.PackedFolder,
        fffs.open,
        load_source,
        fffs.FileReader,
        lambda p: fffs.unpack(p, f"{p}-copy"),
    ]
    for way in ways:
        with pytest.raises(SourceNotFoundError, match=message):
            way(parts)
    assert run("info", parts).returncode == 3
    others = list(parts.iterdir())
    with fffs.PackedFolder(others) as folder:  # somebody who names the files themselves knows what is missing
        assert folder.num_files() > 0


def test_a_part_that_is_there_twice_or_has_a_number_too_large(parts: Path) -> None:
    (parts / "set-000003-of-00005.ffr").write_bytes(b"")
    with pytest.raises(FormatError, match="the same number"):
        fffs.PackedFolder(parts)
    (parts / "set-000003-of-00005.ffr").rename(parts / "set-00005-of-00005.ffr")
    with pytest.raises(FormatError, match="too large"):
        fffs.PackedFolder(parts)


@pytest.mark.parametrize("align", [False, True])
def test_a_set_becomes_one_pack(source: Path, tmp_path: Path, align: bool) -> None:
    grow(source / "odd", 3)
    (source / "large").write_bytes(os.urandom(3 << 20))
    fffs.pack_folder(source, tmp_path / "set", parts=7)
    assert fffs.convert(tmp_path / "set", tmp_path / "one.ffr", align=align, verify=True).parts == 1
    fffs.unpack(tmp_path / "one.ffr", tmp_path / "copy")
    assert not differences(snapshot(source), snapshot(tmp_path / "copy"))
    assert done("verify", "-q", tmp_path / "one.ffr") == ""
    shutil.copy(tmp_path / "one.ffr", tmp_path / "set")
    with pytest.raises(UsageError, match="convert each one separately"):
        fffs.convert(tmp_path / "set", tmp_path / "two.ffr")


def test_parts_of_different_sets_are_an_error(source: Path, parts: Path, tmp_path: Path) -> None:
    """A set that was copied over another one with the same name and number of parts, but not to the end."""
    shutil.rmtree(source / sorted(os.listdir(source))[0])
    fffs.pack_folder(source, tmp_path / "other", parts=5)
    mixed = tmp_path / "mixed"
    shutil.copytree(parts, mixed)
    for name in ("1", "2"):
        shutil.copy(
            tmp_path / "other" / f"other-0000{name}-of-00005.ffr", mixed / f"{parts.name}-0000{name}-of-00005.ffr"
        )
    for act in (fffs.PackedFolder, fffs.torch.PackedFolder, lambda path: fffs.unpack(path, tmp_path / "out")):
        with pytest.raises(FormatError, match=r"and another part both have .*, so they are not parts of one set"):
            act(mixed)
    shutil.rmtree(mixed)
    shutil.copytree(parts, mixed)
    for path in (tmp_path / "other").iterdir():  # two sets may have the same names: the first one's are shown
        shutil.copy(path, mixed)
    with fffs.PackedFolder(mixed) as both, fffs.PackedFolder(parts) as first:
        assert both.list() == first.list()


def test_other_names_are_no_sets(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "packs"
    folder.mkdir()
    for name in ("photos-2020-of-2024.ffr", "a-1-of-3.ffr", ".set-00000-of-00003.ffr"):
        fffs.pack_folder(source, folder / name)
    with fffs.PackedFolder(folder) as shown:
        assert shown.num_files() == 12


# ---------------------------------------------------------------- commands


def test_pack_into_parts(source: Path, tmp_path: Path) -> None:
    out = done("pack", "--parts", 3, "--executor", "processes:2", source, tmp_path / "set")
    assert out.startswith(f"{tmp_path / 'set'}: 12 files in 3 parts, 6.0 KB in ")
    assert_same(source, tmp_path / "set", tmp_path / "copy")
    again = run("pack", "--parts", 3, source, tmp_path / "set")
    assert (again.returncode, "already exists" in again.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--parts", "3"), "name the folder for the parts"),
        (("--executor", "processes:2", "x.ffr"), "executor, restart and report are for parts"),
        (("--restart", "x.ffr"), "executor, restart and report are for parts"),
        (("--parts", "3", "--executor", "mars", "x"), "is not an executor"),
        (("--parts", "3", "--verity", "x"), "fs-verity is for single files"),
        (("--parts", "0", "x"), "not a number of at least 1"),
        (("--parts", "9999", "x"), "must be from 1 to 4096"),
    ],
)
def test_wrong_usage_is_one_line(source: Path, tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    names = [str(tmp_path / word) if word.startswith("x") else word for word in words]
    result = run("pack", source, *names)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert said in result.stderr
    assert os.listdir(tmp_path) == ["photos"]


def test_three_steps_as_in_a_job_array(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "set"
    os.mkfifo(source / "dog" / "fifo")
    assert f"in 3 tasks, from 0 to 2; run each with fffs plan run {target} --task K" in done(
        "plan", "pack", "--parts", 3, source, target
    )
    assert done("plan", "run", target, "--task", 2, "--task", 0).count("\n") == 2
    incomplete = run("plan", "commit", target)
    assert (incomplete.returncode, incomplete.stdout) == (2, "")
    assert "set-00001-of-00003.ffr: part 1 is missing" in incomplete.stderr
    assert "there is no task 3, the last is 2" in run("plan", "run", target, "--task", 3).stderr
    assert done("plan", "run", target).count("\n") == 3
    result = run("plan", "commit", target)
    assert result.returncode == 0
    assert result.stdout == f"{target}: 12 files in 3 parts, 6.0 KB\n"
    assert result.stderr == f"fffs: warning: {source}/dog/fifo: a FIFO, left out\n"
    copy = tmp_path / "copy"
    fffs.unpack(target, copy)
    (source / "dog" / "fifo").unlink()
    assert contents(source) == contents(copy)
    over = run("plan", "run", target, "--task", 0)
    assert (over.returncode, "there is no plan for it" in over.stderr) == (3, True)


def test_a_plan_as_json_and_its_abort(source: Path, tmp_path: Path) -> None:
    text = done("plan", "pack", "--parts", 3, "--json", source, tmp_path / "set")
    plan = fffs.PackPlan.from_json(text)
    assert plan == fffs.PackPlan.load(tmp_path / "set")
    assert len(json.loads(text)["tasks"]) == 3
    assert done("plan", "abort", tmp_path / "set") == ""
    assert os.listdir(tmp_path) == ["photos"]


def test_info_shows_the_set(parts: Path) -> None:
    facts = json.loads(done("info", "--json", parts))
    assert len(facts["sources"]) == 5
    (one,) = facts["sets"]
    sizes = [path.stat().st_size for path in parts.iterdir()]
    assert one == {
        "name": f"{parts}/set-*-of-00005.ffr",
        "parts": 5,
        "smallest_bytes": min(sizes),
        "largest_bytes": max(sizes),
    }
    text = done("info", parts)
    assert f"sets:               {parts}/set-*-of-00005.ffr (5 parts, from " in text
    assert "set-00003" not in text
    assert "files:              12" in text
    alone = done("info", parts / "set-00003-of-00005.ffr")
    assert "(1 part, from " in alone


def test_verify_on_an_executor_finds_the_same(parts: Path) -> None:
    assert done("verify", "--executor", "processes:2", parts).startswith("ok: 17 records, ")
    for name, at in (("set-00001-of-00005.ffr", 100), ("set-00003-of-00005.ffr", -1)):
        damaged = bytearray((parts / name).read_bytes())
        damaged[at] ^= 1
        (parts / name).write_bytes(damaged)
    here, there = run("verify", parts), run("verify", "--executor", "processes:2", parts)
    assert there.returncode == here.returncode == 5
    assert there.stderr == here.stderr
    assert "set-00001-of-00005.ffr: record 0" in there.stdout and "set-00003-of-00005.ffr: record" in there.stdout
    found = json.loads(run("verify", "--json", "--executor", "processes:2", parts).stdout)
    assert [one["number"] for one in found["bad"]] == [
        one["number"] for one in json.loads(run("verify", "--json", parts).stdout)["bad"]
    ]


def test_a_data_set_is_verified_on_an_executor(parts: Path, tmp_path: Path) -> None:
    fffs.convert(parts / "set-00000-of-00005.ffr", tmp_path / "data", from_="ffrecord", to="granular")
    here, there = (done("verify", *words, tmp_path / "data") for words in ((), ("--executor", "processes:1")))
    assert here.split(",")[0] == there.split(",")[0] != ""


def test_verify_on_an_executor_names_what_it_cannot_open(parts: Path) -> None:
    (parts / "set-00002-of-00005.ffr").write_bytes(b"no pack")
    result = run("verify", "--executor", "processes:2", parts)
    assert (result.returncode, result.stdout) == (4, "")
    assert "set-00002-of-00005.ffr" in result.stderr
    assert "is not an executor" in run("verify", "--executor", "mars", parts).stderr
