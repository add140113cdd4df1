"""Archives that become a set of packs: whole shards on many machines, names that meet, damage and changes."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from archives import END, tar_file, tar_folder, zip_folder
from builders import Pack, contents
from inside import PlanFolder
from set_sources import files_of

import fffs
from fffs.errors import FormatError, MetadataError, SourceChangedError, UsageError


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    """Six tar archives of different sizes, with folders that they share."""
    made = []
    (tmp_path / "shards").mkdir()
    for k in range(6):
        members = [tar_file(b"d%d/%03d-%d.jpg" % (j % 2, k, j), bytes([k, j]) * 500 * (k + 1)) for j in range(5)]
        made.append(tmp_path / "shards" / f"data-{k:03}.tar")
        made[-1].write_bytes(b"".join(members) + END)
    return made


def unpacked(archives: list[Path], folder: Path) -> Path:
    """Unpack archives with tar, one after the other."""
    folder.mkdir()
    for path in archives:
        subprocess.run(["tar", "xf", path, "-C", folder], check=True)
    return folder


@pytest.mark.parametrize("executor", ["none", "threads", "processes:2"])
def test_shards_become_packs_that_are_one_tree(shards: list[Path], tmp_path: Path, executor: str) -> None:
    given: Any = {"none": None, "threads": ThreadPoolExecutor(3)}.get(executor, executor)
    done: list[Any] = []
    found = fffs.convert(shards, tmp_path / "set", parts=3, executor=given, progress=lambda *now: done.append(now))
    assert found[:3] == ("tar", "ffrecord", 30)
    assert found.parts == 3
    assert sorted(os.listdir(tmp_path / "set")) == [f"set-{k:05}-of-00003.ffr" for k in range(3)]
    fffs.unpack(tmp_path / "set", tmp_path / "copy")
    assert contents(unpacked(shards, tmp_path / "tar")) == contents(tmp_path / "copy")
    total = sum(path.stat().st_size for path in shards)
    assert done[-1] == (total, total)


def test_whole_shards_are_divided_by_their_bytes(shards: list[Path], tmp_path: Path) -> None:
    plan = fffs.plan_convert(shards, tmp_path / "set", 3)
    assert [[Path(part.path).name[5:8] for part in task.sources] for task in plan.tasks] == [
        ["000", "001", "002"],
        ["003", "004"],
        ["005"],
    ]
    assert plan.total_bytes == sum(path.stat().st_size for path in shards)
    assert fffs.ConvertPlan.from_json(plan.to_json()) == plan
    with pytest.raises(UsageError, match=r"data-000\.tar: archives are in one part each.*at most --parts 6"):
        fffs.plan_convert(shards, tmp_path / "other", 7)


def test_a_folder_of_archives_stands_for_them_if_that_is_said(shards: list[Path], tmp_path: Path) -> None:
    (tmp_path / "shards" / "README").touch()
    plan = fffs.plan_convert(tmp_path / "shards", tmp_path / "set", 2, from_="tar")
    assert [part.path for task in plan.tasks for part in task.sources] == list(map(str, shards))
    plan.abort()
    with pytest.raises(UsageError, match="fffs pack --parts"):
        fffs.plan_convert(tmp_path / "shards", tmp_path / "set", 2)


def test_a_part_of_one_archive_is_the_pack_that_one_process_makes(shards: list[Path], tmp_path: Path) -> None:
    plan = fffs.plan_convert(shards, tmp_path / "set", 6, align=True)
    plan.commit([task.run(jobs=3) for task in plan.tasks])
    for task, shard in zip(plan.tasks, shards, strict=True):
        fffs.convert(shard, tmp_path / "one.ffr", align=True, force=True)
        assert Path(task.path).read_bytes() == (tmp_path / "one.ffr").read_bytes()


@pytest.mark.parametrize("kind", ["w", "w:gz", "w:xz", "zip"])
def test_links_modes_times_and_empty_folders_are_kept(tmp_path: Path, kind: str) -> None:
    folders = []
    for k in range(3):
        folder = tmp_path / f"in{k}" / f"top{k}"
        (folder / "empty").mkdir(parents=True)
        (folder / "a").write_bytes(bytes([k]) * 1000)
        (folder / "b").write_bytes(b"")
        os.symlink("a", folder / "link")
        if kind != "zip":
            os.link(folder / "a", folder / "again")
        os.chmod(folder / "a", 0o600)
        folders.append(folder.parent)
    archives = [tmp_path / f"{k}.archive" for k in range(3)]
    for folder, path in zip(folders, archives, strict=True):
        if kind == "zip":
            zip_folder(folder, path)
        else:
            tar_folder(folder, path, kind, tarfile.PAX_FORMAT)
    fffs.convert(archives, tmp_path / "set", parts=2, verify=True, executor=ThreadPoolExecutor(1))
    merged = tmp_path / "merged"
    for folder in folders:
        shutil.copytree(folder, merged, symlinks=True, dirs_exist_ok=True)
    fffs.unpack(tmp_path / "set", tmp_path / "copy")
    assert contents(merged) == contents(tmp_path / "copy")
    for k in range(3):
        assert (tmp_path / "copy" / f"top{k}" / "a").stat().st_mode & 0o777 == 0o600
        assert (tmp_path / "copy" / f"top{k}" / "a").stat().st_nlink == (1 if kind == "zip" else 2)


def test_parts_of_several_archives_can_be_read_by_ffrecord(shards: list[Path], tmp_path: Path) -> None:
    plan = fffs.plan_convert(shards, tmp_path / "set", 1)
    plan.commit([task.run() for task in plan.tasks])
    assert len(Pack.parse(Path(plan.tasks[0].path).read_bytes()).records) == 30


@pytest.mark.parametrize("parts", [1, 3])
def test_a_name_that_two_archives_have_is_an_error_before_anything_appears(tmp_path: Path, parts: int) -> None:
    paths = [tmp_path / f"{k}.tar" for k in range(3)]
    for k, path in enumerate(paths):
        path.write_bytes(tar_file(b"d/same" if k else b"d/other") + tar_file(b"d/own%d" % k) + END)
    with pytest.raises(UsageError, match=r"2\.tar: 'd/same' is in an earlier source, too"):
        fffs.convert(paths, tmp_path / "set", parts=parts, executor=ThreadPoolExecutor(1))
    assert not (tmp_path / "set").exists()
    paths[2].write_bytes(tar_file(b"d/third") + END)
    fffs.convert(paths, tmp_path / "set", parts=parts, executor=ThreadPoolExecutor(1), restart=True)
    with fffs.PackedFolder(tmp_path / "set") as pack:
        assert sorted(pack.list("d")) == ["other", "own0", "own1", "same", "third"]


# ---------------------------------------------------------------- damage and changes


@pytest.mark.parametrize("damage", ["cut", "header", "empty"])
def test_a_damaged_archive_is_named_and_the_other_parts_are_kept(
    shards: list[Path], tmp_path: Path, damage: str
) -> None:
    data = shards[4].read_bytes()
    broken = {"cut": data[: len(data) // 2], "header": data[:8] + b"x" + data[9:], "empty": b""}[damage]
    shards[4].write_bytes(broken)
    with pytest.raises(FormatError, match=r"data-004\.tar"):
        fffs.convert(shards, tmp_path / "set", parts=6, from_="tar", executor=ThreadPoolExecutor(1))
    assert not (tmp_path / "set").exists()
    shards[4].write_bytes(data)
    fffs.convert(shards, tmp_path / "set", parts=6, from_="tar", executor=ThreadPoolExecutor(1))
    assert sorted(os.listdir(tmp_path)) == ["set", "shards"]


def test_a_task_for_a_damaged_archive_leaves_no_part(shards: list[Path], tmp_path: Path) -> None:
    data = bytearray(shards[4].read_bytes())
    data[8] ^= 1
    shards[4].write_bytes(data)
    plan = fffs.plan_convert(shards, tmp_path / "set", 6, from_="tar")
    with pytest.raises(MetadataError, match=r"data-004\.tar"):
        plan.tasks[4].run()
    plan.tasks[0].run()
    assert os.listdir(tmp_path / ".set.fffs-plan" / "parts") == [
        Path(PlanFolder(plan.target).part(*plan.parts[0])).name
    ]


def test_an_archive_that_changed_after_the_plan_is_named(shards: list[Path], tmp_path: Path) -> None:
    plan = fffs.plan_convert(shards, tmp_path / "set", 3)
    os.utime(shards[4], ns=(0, 1))
    plan.tasks[0].run()
    with pytest.raises(SourceChangedError, match=r"data-004\.tar: changed after the plan was made"):
        plan.tasks[1].run()
    again = fffs.plan_convert(shards, tmp_path / "set", 3)
    assert [result is not None for result in again.results()] == [True, False, False]


def test_a_damaged_part_of_archives_is_written_again(shards: list[Path], tmp_path: Path) -> None:
    plan = fffs.plan_convert(shards, tmp_path / "set", 3)
    first = plan.tasks[0].run()
    part = Path(PlanFolder(plan.target).part(*plan.parts[0]))
    whole = part.read_bytes()
    part.write_bytes(whole[:-500] + b"x" + whole[-499:])
    assert plan.tasks[0].run().checksum == first.checksum
    assert part.read_bytes() == whole
    plan.commit([task.run() for task in plan.tasks])
    (tmp_path / "b").mkdir()
    fffs.convert(shards, tmp_path / "b" / "set", parts=3)
    assert files_of(tmp_path / "set") == files_of(tmp_path / "b" / "set")
