"""Packed folders that become sets of packs, with their names, on many machines."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from builders import Pack, record_file
from set_sources import assert_same, files_of, grow

import fffs
from fffs.errors import ChecksumError, SourceChangedError, UsageError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder of equal files with a hard link, a symbolic link and an empty folder."""
    folder = tmp_path / "photos"
    for k in range(5):
        (folder / f"day{k}" / "inner").mkdir(parents=True)
        for j in range(20):
            (folder / f"day{k}" / "inner" / f"{j:03}.jpg").write_bytes(bytes([k, j]) * 1000)
    os.symlink("day0", folder / "link")
    os.link(folder / "day3/inner/007.jpg", folder / "again")
    (folder / "empty").mkdir(0o700)
    os.chmod(folder / "day1", 0o711)
    return folder


@pytest.mark.parametrize("parts", [1, 3, 7, 4000])
@pytest.mark.parametrize("align", [False, True])
def test_a_pack_becomes_a_set_with_the_same_tree(source: Path, tmp_path: Path, parts: int, align: bool) -> None:
    fffs.pack_folder(source, tmp_path / "x.ffr", align=align)
    done = fffs.convert(
        tmp_path / "x.ffr",
        tmp_path / "set",
        to="ffrecord",
        parts=parts,
        align=align,
        verify=True,
        executor=ThreadPoolExecutor(2),
    )
    assert (done.items, done.total_bytes) == (100, 200_000)
    assert_same(source, tmp_path / "set", tmp_path / "copy")
    for part in (tmp_path / "set").iterdir():
        if not align:
            assert Pack.parse(part.read_bytes()).records is not None  # ffrecord reads its tree


@pytest.mark.parametrize("seed", range(4))
def test_odd_names_are_kept_in_sets_of_other_numbers_of_parts(tmp_path: Path, seed: int) -> None:
    grow(tmp_path / "f", seed)
    fffs.pack_folder(tmp_path / "f", tmp_path / "set", parts=5)
    for parts in (2, 9):
        plan = fffs.plan_convert(tmp_path / "set", tmp_path / f"set{parts}", parts, to="ffrecord")
        plan.commit([task.run() for task in plan.tasks[::-1]])
        assert_same(tmp_path / "f", tmp_path / f"set{parts}", tmp_path / f"copy{parts}")


def test_parts_of_files_of_a_pack_are_about_equal_and_always_the_same(source: Path, tmp_path: Path) -> None:
    fffs.pack_folder(source, tmp_path / "x.ffr")
    for name in "ab":
        (tmp_path / name).mkdir()
        plan = fffs.plan_convert(tmp_path / "x.ffr", tmp_path / name / "set", 5, to="ffrecord")
        assert fffs.ConvertPlan.from_json(plan.to_json()) == plan
        assert [task.total_bytes for task in plan.tasks] == [40_000] * 5
        results = [task.run(jobs=1) for task in plan.tasks]
        assert [task.run() for task in plan.tasks] == results
        plan.commit()
    assert files_of(tmp_path / "a" / "set") == files_of(tmp_path / "b" / "set")


def test_a_damaged_file_of_a_pack_is_named_and_a_changed_pack_is_refused(source: Path, tmp_path: Path) -> None:
    fffs.pack_folder(source, tmp_path / "x.ffr")
    path = tmp_path / "x.ffr"
    status, data = path.stat(), bytearray(path.read_bytes())
    plan = fffs.plan_convert(path, tmp_path / "set", 5, to="ffrecord")
    data[data.index(bytes([2, 3]) * 1000)] ^= 1
    path.write_bytes(data)
    with pytest.raises(SourceChangedError, match=r"x\.ffr: changed after the plan"):
        plan.tasks[0].run()
    os.utime(path, ns=(0, status.st_mtime_ns))
    results = []
    for task in plan.tasks:
        try:
            results.append(task.run())
        except ChecksumError as error:
            assert "x.ffr: record 44" in str(error) or "x.ffr: record 43" in str(error)
    assert len(results) == 4


def test_packs_and_plain_records_are_not_mixed_and_names_must_differ(source: Path, tmp_path: Path) -> None:
    fffs.pack_folder(source, tmp_path / "x.ffr")
    (tmp_path / "y.ffr").write_bytes(record_file([b"a"]))
    with pytest.raises(UsageError, match=r"y\.ffr: not a packed folder"):
        fffs.plan_convert([tmp_path / "x.ffr", tmp_path / "y.ffr"], tmp_path / "set", 2, to="ffrecord")
    for parts in (1, 2):
        with pytest.raises(UsageError, match="again' is in an earlier source, too"):
            fffs.convert([tmp_path / "x.ffr"] * 2, tmp_path / "set", to="ffrecord", parts=parts, restart=True)
    assert not (tmp_path / "set").exists()
