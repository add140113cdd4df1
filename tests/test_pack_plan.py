"""Plans for packing into parts: how a folder is divided, and what tasks do anywhere and at any time."""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import json
import os
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from builders import Pack, Progress, as_nobody, btrfs, differences, once, snapshot
from hypothesis import given
from hypothesis import strategies as st
from inside import (
    Children,
    PlanFolder,
    Span,
    WalkColumns,
    division,
    open_source,
    record_parts,
    remove_plan,
    scan_folder,
    survey,
)
from set_sources import assert_same, files_of, grow

import fffs
import fffs.granular
import fffs.ofrecord
import fffs.tfrecord
from fffs.errors import FormatError, ReadError, SourceChangedError, SourceNotFoundError, UsageError, WriteError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder of about 200 KB in five folders."""
    folder = tmp_path / "photos"
    for k in range(5):
        (folder / f"day{k}").mkdir(parents=True)
        for j in range(20):
            (folder / f"day{k}" / f"{j:03}.jpg").write_bytes(bytes([k, j]) * 1000)
    return folder


# ---------------------------------------------------------------- the division


def paths_in(folder: Path | bytes, span: Any = None) -> list[bytes]:
    """Return the files that a scan of a span finds, in the order of their records."""
    with open_source(os.fsencode(folder)) as opened:
        scan = scan_folder(opened, None, lambda _: None, span or Span())
        return [scan.path(k) for k in range(len(scan.sizes))]


@pytest.mark.parametrize("ahead", [1, 10**6])
@pytest.mark.parametrize("seed", range(4))
def test_several_threads_find_the_same_parts_as_one(
    tmp_path: Path, seed: int, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for k in range(3):
        grow(tmp_path / "f" / str(k), seed + k, depth=4)
    found = []
    for slow in (1e9, -1.0):  # no folder seems to be slow, and then each
        monkeypatch.setattr("fffs.packing.survey.SLOW", slow)
        monkeypatch.setattr("fffs.packing.survey.AHEAD", ahead)
        with open_source(os.fsencode(tmp_path / "f")) as opened:
            found += [survey(opened, parts) for parts in (1, 5, 1000)]
    assert found[:3] == found[3:]


def test_an_error_of_any_thread_names_the_first_folder(
    source: Path, tmp_path: Path, in_public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(source, in_public / "photos")
    for k in (2, 3, 4):
        (in_public / "photos" / f"day{k}").chmod(0)
    fffs.plan_pack(source, tmp_path / "set", 2).abort()  # imports what nobody need be able to read
    monkeypatch.setattr("fffs.packing.survey.SLOW", -1.0)
    with as_nobody(in_public), pytest.raises(ReadError, match=r"photos/day2: "):
        fffs.plan_pack("photos", "set", 2)


def test_folders_between_files_and_with_folders_in_them_keep_their_order(tmp_path: Path) -> None:
    """Cuts are possible before each name but the first of a folder, and what lies before them is what a scan finds."""
    for path in ("a/1", "b", "c/1", "c/2", "d/1/x", "e/1", "f", "g/1/1", "g/2/1", "h/1"):
        (tmp_path / "f" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "f" / path).write_bytes(path.encode())
    (tmp_path / "f" / "e2").mkdir()
    with open_source(os.fsencode(tmp_path / "f")) as opened:
        cuts = survey(opened, 1000)
        scan = scan_folder(opened, None, lambda _: None, Span())
    assert [cut.path.decode() for cut in cuts[1:-1]] == ["b", "c", "c/2", "d", "e", "e2", "f", "g", "g/2", "h"]
    assert cuts[-1].digest % 2**64 == scan.digest
    assert (cuts[-1].names, cuts[-1].size) == (len(scan.listing) + 1, scan.total_bytes)


def test_a_folder_that_vanishes_before_its_batch_is_listed_is_named(source: Path, monkeypatch: Any) -> None:
    def vanish(*arguments: Any) -> Any:
        if (source / "day3").exists():
            shutil.rmtree(source / "day3")
        return Children(*arguments)

    monkeypatch.setattr("fffs.packing.survey.Children", vanish)
    with open_source(os.fsencode(source)) as opened, pytest.raises(SourceChangedError, match=r"photos/day3: vanished"):
        survey(opened, 2)


@pytest.mark.parametrize("seed", range(8))
def test_spans_cover_a_folder_of_odd_names_exactly_once(tmp_path: Path, seed: int) -> None:
    grow(tmp_path / "f", seed)
    whole = paths_in(tmp_path / "f")
    for parts in (1, 2, 5, 1000):
        with open_source(os.fsencode(tmp_path / "f")) as opened:
            places = survey(opened, parts)
            for begin, end in itertools.pairwise(places):
                scan = scan_folder(opened, None, lambda _: None, Span(begin.path, end.path))
                assert scan.digest == (end.digest - begin.digest) % 2**64
                assert scan.total_bytes == end.size - begin.size
        found = [paths_in(tmp_path / "f", Span(a.path, b.path)) for a, b in itertools.pairwise(places)]
        assert list(itertools.chain(*found)) == whole
        assert places[-1].names == len(snapshot(tmp_path / "f"))


def sizes_of(weights: list[int], parts: int, depth: int = 0) -> list[int]:
    ends = np.cumsum([0, *weights])
    cuts = division.cut_at(ends, np.full(len(ends), depth), parts)
    assert cuts[0] == 0 and cuts[-1] == len(weights) and len(cuts) == parts + 1
    assert all(a < b for a, b in itertools.pairwise(cuts))
    return [int(ends[b] - ends[a]) for a, b in itertools.pairwise(cuts)]


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=60), st.integers(1, 60))
def test_each_part_has_something(weights: list[int], parts: int) -> None:
    assert sum(sizes_of(weights, min(parts, len(weights)))) == sum(weights)


@pytest.mark.parametrize("parts", [2, 7, 12, 100])
def test_parts_of_small_files_differ_by_less_than_two_percent(parts: int) -> None:
    weights = np.random.Generator(np.random.PCG64(parts)).integers(1, 100, 2000 * parts).tolist()
    sizes = sizes_of(weights, parts)
    assert max(sizes) <= 1.02 * sum(weights) / parts
    assert min(sizes) >= 0.98 * sum(weights) / parts


@pytest.mark.parametrize(
    ("weights", "parts", "expected"),
    [
        ([1000] * 4 + [10**9], 3, [2000, 2000, 10**9]),
        ([10**9] + [1000] * 4, 3, [10**9, 2000, 2000]),
        ([500] * 4 + [10**9] + [500] * 4, 3, [2000, 10**9, 2000]),
        ([10**9, 1, 1, 1], 4, [10**9, 1, 1, 1]),
    ],
)
def test_a_huge_file_leaves_equal_parts_of_the_others(weights: list[int], parts: int, expected: list[int]) -> None:
    assert sizes_of(weights, parts) == expected


def folders_in(plan: Any) -> list[set[bytes]]:
    return [{path.split(b"/")[0] for path in paths_in(plan.source, Span(t.start, t.stop))} for t in plan.tasks]


def test_folders_of_equal_size_stay_together(source: Path, tmp_path: Path) -> None:
    plan = fffs.plan_pack(source, tmp_path / "set", 5)
    assert folders_in(plan) == [{b"day%d" % k} for k in range(5)]


def test_places_that_are_thinned_still_divide_equally() -> None:
    """There are six times as many places as are kept: a cut is still near, and before a folder."""
    parts = division.Division(5)
    for k in range(5000):
        parts.add_folder(b"%05d" % k, 100, 1, is_first=k == 0)
        ones: Any = np.ones(3, np.int64)
        names = b"%05d/a" % k, b"%05d/b" % k, b"%05d/c" % k
        columns = WalkColumns(100 * ones, 100 * ones, ones, ones.astype(np.uint64), np.array([0, 1, 1], np.uint8))
        parts.add(division.NamedRun(names.__getitem__, columns))
    cuts = parts.cut()
    assert [cut.depth for cut in cuts] == [0] * 6
    assert [cut.digest for cut in cuts] == [cut.names for cut in cuts]
    assert cuts[-1][:2] == (2_000_000, 0)
    for k, cut in enumerate(cuts):
        assert abs(cut.weight - 400_000 * k) <= 0.009 * 400_000
        assert cut.size == cut.weight - 100 * (cut.names // 4)


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 3)), min_size=1, max_size=200),
    st.integers(1, 400),
)
def test_thinning_leaves_no_large_gap_and_the_highest_folders(places: list[tuple[int, int]], gap: int) -> None:
    weights = np.cumsum([weight for weight, _ in places])
    depths = np.array([depth for _, depth in places])
    kept = division.thinned(weights, depths, gap).tolist()
    for a, b in itertools.pairwise([0, *kept, len(places) - 1]):
        assert weights[b] - weights[a] <= gap or b - a == 1
    step = max(gap // 2, 1)
    for k, weight in enumerate(weights):
        near = [j for j in kept if weights[j] // step == weight // step]
        assert min(depths[near]) <= depths[k]


def test_heavy_files_do_not_blur_the_places_between_small_ones() -> None:
    parts = division.Division(8, places=400)
    weights = np.full(10_000, 100, np.int64)
    weights[::2500] = 10**12
    columns = WalkColumns(weights, weights, 0 * weights, weights.astype(np.uint64), np.ones(10_000, np.uint8))
    parts.add(division.NamedRun(lambda k: b"%05d" % k, columns))
    cuts = parts.cut()
    sizes = [b.size - a.size for a, b in itertools.pairwise(cuts)]
    assert len(sizes) == 8
    assert sorted(size // 10**12 for size in sizes) == [0] * 4 + [1] * 4
    assert max(size for size in sizes if size < 10**12) <= 260_000


@pytest.mark.parametrize("largest", [1, 7, 1000, 20_000])
def test_where_runs_end_does_not_change_the_parts(largest: int) -> None:
    """It depends on how fast folders are listed."""
    random = np.random.default_rng(3)
    weights = random.integers(0, 5000, 20_000)
    cuts, depths = (random.integers(0, 50, 20_000) > 0).astype(np.uint8), random.integers(0, 3, 20_000)
    run = division.NamedRun(
        lambda k: b"%05d" % k, WalkColumns(weights, weights, depths, weights.astype(np.uint64), cuts)
    )
    whole, pieces, begin = division.Division(3, places=300), division.Division(3, places=300), 0
    whole.add(run)
    while begin < len(weights):
        stop = begin + int(random.integers(1, largest + 1))
        pieces.add(run.part(begin, stop))
        begin = stop
    assert pieces.cut() == whole.cut()


# ---------------------------------------------------------------- plans


def test_the_same_folder_gives_the_same_plan(source: Path, tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / name).mkdir()
    one, other = (fffs.plan_pack(source, tmp_path / name / "set", 4) for name in "ab")
    assert [task.start for task in one.tasks] == [task.start for task in other.tasks]
    assert one.fingerprint == other.fingerprint
    assert one.fingerprint != fffs.plan_pack(source, tmp_path / "c" / "set", 3).fingerprint
    assert one.fingerprint != fffs.plan_pack(source, tmp_path / "d" / "set", 4, align=True).fingerprint


def test_a_plan_survives_pickle_and_json(tmp_path: Path) -> None:
    grow(tmp_path / "f", 3)
    plan = fffs.plan_pack(tmp_path / "f", tmp_path / "set", 9)
    assert any(b"\xff" in task.start for task in plan.tasks)
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert fffs.PackPlan.from_json(plan.to_json()) == plan
    assert fffs.PackPlan.load(tmp_path / "set") == plan
    assert len(pickle.dumps(plan.tasks[3])) < 1000


@pytest.mark.parametrize(
    "damage",
    [
        lambda fields: fields["tasks"].pop(),
        lambda fields: fields["tasks"][0].update(stop="else"),
        lambda fields: fields["tasks"][0].pop("stop"),
        lambda fields: fields.update(format="fffs plan 99"),
        lambda fields: fields.update(tasks=7),
        lambda fields: fields.pop("fingerprint"),
    ],
)
def test_a_damaged_plan_is_refused(source: Path, tmp_path: Path, damage: Any) -> None:
    fields = json.loads(fffs.plan_pack(source, tmp_path / "set", 4).to_json())
    damage(fields)
    with pytest.raises(FormatError, match="plan"):
        fffs.PackPlan.from_json(json.dumps(fields))


@pytest.mark.parametrize("text", ["", "[]", "7", '{"format": 1}', "\x00", "[" * 100_000])
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(FormatError, match="plan"):
        fffs.PackPlan.from_json(text)


# ---------------------------------------------------------------- tasks


def test_tasks_in_any_order_and_the_commit_make_the_folder(source: Path, tmp_path: Path) -> None:
    os.symlink("day0/000.jpg", source / "link")
    (source / "empty").mkdir(0o700)
    os.link(source / "day0/000.jpg", source / "day0/000.jpg-again")
    plan = fffs.plan_pack(source, tmp_path / "set", 4)
    results = [task.run() for task in plan.tasks[::-1]]
    assert sorted(os.listdir(tmp_path)) == [".set.fffs-plan", "photos"]
    assert plan.commit(results) == results[::-1]
    assert sorted(os.listdir(tmp_path)) == ["photos", "set"]
    assert sorted(os.listdir(tmp_path / "set")) == [f"set-0000{k}-of-00004.ffr" for k in range(4)]
    for result in results:
        assert os.stat(result.path).st_size == result.size
        assert int.from_bytes(Path(result.path).read_bytes()[:4], "little") == result.checksum
    assert sum(result.records for result in results) == 100
    assert_same(source, tmp_path / "set", tmp_path / "copy")


def test_each_part_is_a_pack_of_its_own_with_the_folders_above(source: Path, tmp_path: Path) -> None:
    os.chmod(source / "day1", 0o711)
    plan = fffs.plan_pack(source, tmp_path / "set", 3)
    plan.commit([task.run() for task in plan.tasks])
    for task in plan.tasks:
        assert Pack.parse(Path(task.path).read_bytes()).records  # ffrecord reads its tree
        with fffs.PackedFolder(task.path) as part:
            inside = part.list(recursive=True, list_dir=False)
        assert [os.fsencode(name) for name in inside] == paths_in(source, Span(task.start, task.stop))
    trees = [fffs.load_source(task.path).tree for task in plan.tasks]
    nodes = [(tree, tree.lookup(0, b"day1")) for tree in trees]
    assert [tree.mode[node] & 0o777 for tree, node in nodes if node is not None] == [0o711] * 2


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("align", [False, True])
def test_a_set_of_odd_names_is_lossless(tmp_path: Path, seed: int, align: bool) -> None:
    grow(tmp_path / "f", seed)
    plan = fffs.plan_pack(tmp_path / "f", tmp_path / "set", 6, align=align)
    plan.commit([task.run() for task in plan.tasks])
    assert_same(tmp_path / "f", tmp_path / "set", tmp_path / "copy")


def test_more_parts_than_files(source: Path, tmp_path: Path) -> None:
    shutil.rmtree(source / "day4")
    plan = fffs.plan_pack(source, tmp_path / "set", 4000)
    assert len(plan.tasks) == 80
    plan.abort()
    shutil.rmtree(source)
    source.mkdir()
    plan = fffs.plan_pack(source, tmp_path / "set", 7)
    plan.commit([task.run() for task in plan.tasks])
    assert os.listdir(tmp_path / "set") == ["set-00000-of-00001.ffr"]
    assert_same(source, tmp_path / "set", tmp_path / "copy")


def test_hard_links_across_parts_become_copies_which_results_count(source: Path, tmp_path: Path) -> None:
    os.link(source / "day0/000.jpg", source / "day4/zzz.jpg")
    plan = fffs.plan_pack(source, tmp_path / "set", 3)
    results = plan.commit([task.run() for task in plan.tasks])
    assert [result.apart for result in results] == [1, 0, 1]
    with fffs.PackedFolder(tmp_path / "set") as pack:
        assert bytes(pack.read_one("day4/zzz.jpg")) == bytes(pack.read_one("day0/000.jpg")) == b"\0\0" * 1000


@pytest.mark.parametrize("path", ["snapshot", "snapshot/day2/inner"])
def test_the_place_of_a_subvolume_that_a_snapshot_does_not_contain_never_changes(
    path: str, source: Path, tmp_path: Path
) -> None:
    """Btrfs shows an empty folder there, whose times are those of the call that asks."""
    with btrfs(tmp_path / "disk") as disk:
        subvolume = functools.partial(subprocess.run, cwd=disk, capture_output=True, check=True)
        subvolume(["btrfs", "subvolume", "create", "s"])
        shutil.copytree(source, disk / "s", dirs_exist_ok=True)
        subvolume(["btrfs", "subvolume", "create", "s/day2/inner"])
        subvolume(["btrfs", "subvolume", "snapshot", "s", "snapshot"])
        before = (disk / "snapshot/day2/inner").stat()
        time.sleep(0.02)  # the clock of a file system ticks
        assert (disk / "snapshot/day2/inner").stat().st_mtime_ns != before.st_mtime_ns
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            plan = fffs.plan_pack(disk / path, tmp_path / name / "set", 3)
            time.sleep(0.02)
            plan.commit([task.run() for task in plan.tasks])
            fffs.pack_folder(disk / path, tmp_path / f"{name}.ffr")
        assert files_of(tmp_path / "one" / "set") == files_of(tmp_path / "two" / "set")
        assert (tmp_path / "one.ffr").read_bytes() == (tmp_path / "two.ffr").read_bytes()
        fffs.unpack(tmp_path / "one.ffr", tmp_path / "copy")
        for folder in (disk / path).rglob("day?"):
            assert (tmp_path / "copy" / folder.name).stat().st_mtime_ns == folder.stat().st_mtime_ns
        inner = tmp_path / "copy" / (disk / "snapshot/day2/inner").relative_to(disk / path)
        assert (inner.stat().st_mtime_ns, inner.stat().st_mode) == (0, before.st_mode)


def test_what_cannot_be_packed_is_in_the_result_of_its_part(source: Path, tmp_path: Path) -> None:
    for k in range(150):
        os.mkfifo(source / "day3" / f"fifo{k:03}")
    plan = fffs.plan_pack(source, tmp_path / "set", 5)
    left_out = [task.run().left_out for task in plan.tasks]
    assert [len(lines) for lines in left_out] == [0, 0, 0, 101, 0]
    assert left_out[3][0] == f"{source}/day3/fifo000: a FIFO, left out"
    assert left_out[3][-1] == "... and 50 more inputs left out"


def test_a_task_that_ran_leaves_its_part_as_it_is(source: Path, tmp_path: Path) -> None:
    plan = fffs.plan_pack(source, tmp_path / "set", 3)
    first = plan.tasks[1].run()
    part = Path(PlanFolder(plan.target).part(*plan.parts[1]))
    before = part.stat()
    assert plan.tasks[1].run() == first
    assert os.path.samestat(part.stat(), before)


@pytest.mark.parametrize("at", [0, -5000, -1], ids=["header", "file", "tree"])
def test_a_damaged_part_is_written_again(source: Path, tmp_path: Path, at: int) -> None:
    plan = fffs.plan_pack(source, tmp_path / "set", 3)
    first = plan.tasks[1].run()
    part = Path(PlanFolder(plan.target).part(*plan.parts[1]))
    whole = part.read_bytes()
    damaged = bytearray(whole)
    damaged[at] ^= 1
    part.write_bytes(damaged)
    again = plan.tasks[1].run()
    assert (again.size, again.checksum) == (first.size, first.checksum)
    assert part.read_bytes() == whole


def test_a_late_task_of_an_older_plan_replaces_no_part_of_a_newer_one(source: Path, tmp_path: Path) -> None:
    old = fffs.plan_pack(source, tmp_path / "set", 2)
    newer: list[fffs.PackPlan] = []

    def plan_again() -> None:
        file = source / "day0" / "000.jpg"
        file.write_bytes(file.read_bytes()[::-1].replace(b"\0", b"x"))
        newer.append(fffs.plan_pack(source, tmp_path / "set", 2))
        for task in newer[0].tasks:
            task.run()

    with pytest.raises(UsageError, match="this plan is not there any more"):
        old.tasks[0].run(progress=late(plan_again))
    newer[0].commit()
    with fffs.PackedFolder(tmp_path / "set") as pack:
        assert bytes(pack.read_one("day0/000.jpg")) == (source / "day0" / "000.jpg").read_bytes()


def late(action: Callable[[], object]) -> Progress:
    """Return a progress callback that calls ``action`` when all is copied."""
    begun: list[bool] = []

    def progress(done: int, total: int) -> None:
        if done == total and not begun:
            begun.append(True)
            action()

    return progress


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "2"])
def test_numbers_of_parts_and_jobs(source: Path, tmp_path: Path, wrong: Any) -> None:
    pack, target = tmp_path / "p.ffr", tmp_path / "set"
    fffs.pack_folder(source, pack)
    for plan in (
        lambda: fffs.plan_pack(source, target, wrong),
        lambda: fffs.plan_convert(pack, target, wrong),
        lambda: fffs.plan_dump("set_sources:small_folder", target, wrong),
        lambda: fffs.pack_folder(source, target, parts=wrong),
    ):
        with pytest.raises(UsageError, match=rf"set: the number of parts must be from 1 to 4096, not {wrong!r}$"):
            plan()
    task = fffs.plan_pack(source, target, 2).tasks[0]
    for option, act in {
        "jobs": (
            lambda: fffs.pack_folder(source, target, parts=2, jobs=wrong),
            lambda: fffs.pack_folder(source, tmp_path / "q.ffr", jobs=wrong),
            lambda: fffs.unpack(pack, target, jobs=wrong),
            lambda: fffs.convert(pack, tmp_path / "q.tar", jobs=wrong),
            lambda: task.run(wrong),
        ),
        "parts": (lambda: fffs.convert(pack, target, parts=wrong),),
        "part_size": (lambda: fffs.convert(pack, target, to="tfrecord", part_size=wrong),),
        "nfiles": (lambda: fffs.utils.dump([b"a", b"b"], target, nfiles=wrong),),
    }.items():
        for call in act:
            with pytest.raises(UsageError, match=f"^{option} must be a whole number of at least 1, not {wrong!r}$"):
                call()
    assert not target.exists()


ZERO = "a\0b"


@pytest.mark.parametrize(
    "act",
    [
        lambda folder, pack: fffs.FileWriter(f"{ZERO}.ffr", 1),
        lambda folder, pack: fffs.FileWriter(f"{ZERO}/x.ffr"),
        lambda folder, pack: fffs.tfrecord.TFRecordWriter(ZERO),
        lambda folder, pack: fffs.ofrecord.OFRecordWriter(ZERO),
        lambda folder, pack: fffs.pack_folder(folder, f"{ZERO}.ffr"),
        lambda folder, pack: fffs.pack_folder(ZERO, folder / "x.ffr"),
        lambda folder, pack: fffs.pack_folder(folder, ZERO, parts=2),
        lambda folder, pack: fffs.pack_folder(ZERO, pack.parent / "set", parts=2),
        lambda folder, pack: fffs.plan_convert(pack, ZERO, 2),
        lambda folder, pack: fffs.convert(pack, f"{ZERO}.tar"),
        lambda folder, pack: fffs.convert(ZERO, pack.parent / "x.tar"),
        lambda folder, pack: fffs.unpack(pack, ZERO),
        lambda folder, pack: fffs.unpack(ZERO, pack.parent / "x"),
        lambda folder, pack: fffs.utils.dump([b"a", b"b"], ZERO),
        lambda folder, pack: fffs.convert(ZERO, pack.parent / "x.ffr", from_="tar"),
        lambda folder, pack: fffs.convert(pack, ZERO, to="granular"),
        lambda folder, pack: fffs.granular.BagWriter(ZERO),
        lambda folder, pack: fffs.granular.ShardedDatasetReader(ZERO),
        lambda folder, pack: fsspec.filesystem("ffr", fo=str(pack)).get_file("day0/000.jpg", ZERO),
        lambda folder, pack: fffs.open(ZERO),
        lambda folder, pack: fffs.PackedFolder(ZERO.encode()),
        lambda folder, pack: fffs.PackPlan.load(ZERO),
    ],
)
def test_a_path_with_a_zero_byte_is_refused(source: Path, tmp_path: Path, act: Callable[[Path, Path], object]) -> None:
    fffs.pack_folder(source, tmp_path / "p.ffr")
    with pytest.raises(UsageError, match=r"^'.*a\\x00b.*': no path has a zero byte$"):
        act(source, tmp_path / "p.ffr")


@pytest.mark.parametrize("name", ["source", "target"])
def test_a_plan_with_a_zero_byte_in_a_path_is_damaged(source: Path, tmp_path: Path, name: str) -> None:
    fields = json.loads(fffs.plan_pack(source, tmp_path / "set", 2).to_json())
    with pytest.raises(FormatError, match=r"not a plan to pack, or a damaged one .*no path has a zero byte"):
        fffs.PackPlan.from_json(json.dumps({**fields, name: "/a\0b"}))


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff", b"null", b"[" * 100_000])
def test_a_damaged_result_is_none(source: Path, tmp_path: Path, text: bytes) -> None:
    plan = fffs.plan_pack(source, tmp_path / "set", 4)
    for task in plan.tasks:
        task.run()
    (tmp_path / ".set.fffs-plan" / "results" / "00002").write_bytes(text)
    with pytest.raises(UsageError, match="part 2 is missing"):
        plan.commit()
    plan.tasks[2].run()
    assert len(plan.commit()) == 4


def test_a_new_plan_removes_the_parts_that_it_does_not_keep(source: Path, tmp_path: Path) -> None:
    plan = fffs.plan_pack(source, tmp_path / "set", 3)
    results = [task.run() for task in plan.tasks]
    os.utime(source / "day0" / "000.jpg", (1, 1))
    again = fffs.plan_pack(source, tmp_path / "set", 3)
    assert again.results() == [None, *results[1:]]
    parts = os.listdir(tmp_path / ".set.fffs-plan" / "parts")
    assert sorted(name[33:] for name in parts) == [task.name for task in plan.tasks[1:]]


def test_names_of_parts_of_the_greatest_length(source: Path, tmp_path: Path) -> None:
    name = "n" * (255 - len("-00000-of-00002.ffr"))
    assert fffs.pack_folder(source, tmp_path / name, parts=2).files
    assert sorted(os.listdir(tmp_path / name)) == [f"{name}-0000{k}-of-00002.ffr" for k in range(2)]


def test_tasks_that_run_twice_at_once_write_the_same(source: Path, tmp_path: Path) -> None:
    plan = fffs.plan_pack(source, tmp_path / "set", 2)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda task: task.run(), plan.tasks * 4))
    plan.commit(results)
    assert len({(result.part, result.size, result.checksum) for result in results}) == 2
    other = fffs.plan_pack(source, tmp_path / "other" / "set", 2) if (tmp_path / "other").mkdir() is None else None
    assert other is not None
    other.commit([task.run(jobs=1) for task in other.tasks])
    assert files_of(tmp_path / "set") == files_of(tmp_path / "other" / "set")


@pytest.mark.parametrize("work", ["pack", "convert", "verify"])
def test_a_plan_means_the_same_in_every_locale(source: Path, tmp_path: Path, work: str) -> None:
    """There, names are ASCII with the bytes of others as surrogates."""
    (source / "über").mkdir()
    for folder in (source / "über", source):
        for name in ("é", "\udcff", "z"):
            (folder / name).write_bytes(os.fsencode(name))
    folder, target = source.rename(tmp_path / "Größe\udcff"), tmp_path / "naïve"
    code = "import sys, fffs; p = {}.from_json(sys.stdin.read()); {}"
    run, load = (
        "[task.run() for task in p.tasks]",
        {"pack": "fffs.PackPlan", "convert": "fffs.ConvertPlan", "verify": "fffs.VerifyPlan"},
    )
    if work == "pack":
        plan: Any = fffs.plan_pack(folder, target, 3)
        run += "; fffs.plan_pack(p.source, p.target, 3)"  # goes on
    else:
        fffs.pack_folder(folder, tmp_path / "Größe\udcff.ffr")
        plan = fffs.plan_verify(tmp_path / "Größe\udcff.ffr")
    if work == "convert":
        plan = fffs.plan_convert(tmp_path / "Größe\udcff.ffr", target, 2)
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", code.format(load[work], run)]
    subprocess.run(command, input=plan.to_json().encode(), env=environment, check=True)
    if work == "verify":
        return
    plan.commit()
    fffs.unpack(target, tmp_path / "copy")
    assert not differences(snapshot(folder), snapshot(tmp_path / "copy"))


def test_a_task_runs_in_a_new_process_of_another_folder(source: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    plan = fffs.plan_pack("photos", "set", 2)
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).run().records)"
    for task in plan.tasks:
        subprocess.run([sys.executable, "-c", code], input=pickle.dumps(task), cwd="/", check=True)
    plan.commit()
    assert_same(source, tmp_path / "set", tmp_path / "copy")


# ---------------------------------------------------------------- changes


def changes(source: Path) -> dict[str, Any]:
    file = source / "day2/010.jpg"
    return {
        "other bytes": lambda: file.write_bytes(b"other bytes"),
        "another time": lambda: os.utime(file, ns=(0, 1)),
        "another mode": lambda: file.chmod(0o600),
        "a new file": lambda: (source / "day2/new").write_bytes(b""),
        "a missing file": file.unlink,
        "another name": lambda: file.rename(source / "day2/x"),
        "a folder instead": lambda: (file.unlink(), file.mkdir()),
        "a missing folder": lambda: shutil.rmtree(source / "day2"),
    }


@pytest.mark.parametrize("kind", list(changes(Path())))
def test_a_change_after_the_plan_is_an_error_that_names_it(source: Path, tmp_path: Path, kind: str) -> None:
    plan = fffs.plan_pack(source, tmp_path / "set", 5)
    changes(source)[kind]()
    failed = []
    for task in plan.tasks:
        try:
            task.run()
        except SourceChangedError as error:
            failed.append((task.number, str(error)))
    assert [number for number, _ in failed] == ([0, 2] if kind == "a missing folder" else [2])  # the root, too
    assert str(source) in failed[0][1]
    if kind != "a missing folder":
        assert "day2" in failed[0][1]


def test_a_folder_that_became_a_file_where_a_part_begins(source: Path, tmp_path: Path) -> None:
    plan = fffs.plan_pack(source, tmp_path / "set", 8)
    task = next(task for task in plan.tasks if b"/" in task.start)
    folder = source / os.fsdecode(task.start.split(b"/")[0])
    shutil.rmtree(folder)
    folder.write_bytes(b"")
    with pytest.raises(SourceChangedError, match=r"changed after the plan was made"):
        task.run()


def test_a_new_plan_keeps_the_parts_whose_input_is_the_same(source: Path, tmp_path: Path) -> None:
    plan = fffs.plan_pack(source, tmp_path / "set", 5)
    results = [task.run() for task in plan.tasks]
    os.utime(source / "day2" / "003.jpg", ns=(0, 1))
    other = fffs.plan_pack(source, tmp_path / "set", 5)
    assert other.results() == [*results[:2], None, *results[3:]]
    with pytest.raises(UsageError, match="not there any more"):
        plan.tasks[1].run()
    with pytest.raises(UsageError, match="part 2 is missing"):
        other.commit(results)
    other.commit([task.run() for task in other.tasks])
    assert_same(source, tmp_path / "set", tmp_path / "copy")


def test_a_plan_for_another_request_is_refused_until_it_is_restarted(source: Path, tmp_path: Path) -> None:
    fffs.plan_pack(source, tmp_path / "set", 5)
    plan = fffs.plan_pack(source, tmp_path / "set", 4)  # nothing is lost
    plan.tasks[0].run()
    shutil.copytree(source, tmp_path / "other")
    for acts in ((source, 5, False), (source, 4, True), (tmp_path / "other", 4, False)):
        folder, parts, align = acts
        with pytest.raises(UsageError, match=r"another number of parts.*--restart"):
            fffs.plan_pack(folder, tmp_path / "set", parts, align=align)
    assert fffs.plan_pack(source, tmp_path / "set", 4).results()[0]
    other = fffs.plan_pack(source, tmp_path / "set", 5, restart=True)
    assert other.results() == [None] * 5


# ---------------------------------------------------------------- the end


def test_a_missing_part_is_named(source: Path, tmp_path: Path) -> None:
    plan = fffs.plan_pack(source, tmp_path / "set", 3)
    results = [plan.tasks[k].run() for k in (0, 2)]
    for passed in (results, None):
        with pytest.raises(UsageError, match=r"set-00001-of-00003\.ffr: part 1 is missing"):
            plan.commit(passed)
    results.append(plan.tasks[1].run())
    os.unlink(PlanFolder(plan.target).part(*plan.parts[0]))
    with pytest.raises(UsageError, match=r"part 0 has vanished"):
        plan.commit(results)
    assert not (tmp_path / "set").exists()


def test_abort_leaves_nothing(source: Path, tmp_path: Path) -> None:
    plan = fffs.plan_pack(source, tmp_path / "set", 3)
    plan.tasks[0].run()
    plan.abort()
    plan.abort()
    assert os.listdir(tmp_path) == ["photos"]
    for act in (plan.tasks[0].run, plan.commit):
        with pytest.raises(UsageError, match="not there any more"):
            act()
    assert os.listdir(tmp_path) == ["photos"]
    with pytest.raises(SourceNotFoundError, match="no plan"):
        fffs.PackPlan.load(tmp_path / "set")


@pytest.mark.parametrize("end", ["abort", "commit"])
def test_a_task_that_still_runs_at_the_end_fails_and_leaves_nothing(source: Path, tmp_path: Path, end: str) -> None:
    plan = fffs.plan_pack(source, tmp_path / "set", 3)
    results = [task.run() for task in plan.tasks]
    os.unlink(PlanFolder(plan.target).part(*plan.parts[1]))

    def finish() -> None:
        for task in plan.tasks:  # another attempt has completed the part meanwhile
            task.run()
        plan.abort() if end == "abort" else plan.commit(results)

    with pytest.raises(WriteError, match="No such file"):
        plan.tasks[1].run(progress=once(finish))
    assert sorted(os.listdir(tmp_path)) == (["photos"] if end == "abort" else ["photos", "set"])
    if end == "commit":
        assert_same(source, tmp_path / "set", tmp_path / "copy")


def test_a_target_that_exists_is_refused_before_and_after_the_work(source: Path, tmp_path: Path) -> None:
    plan = fffs.plan_pack(source, tmp_path / "set", 2)
    results = [task.run() for task in plan.tasks]
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "mine").touch()
    with pytest.raises(WriteError):
        plan.commit(results)
    with pytest.raises(UsageError, match="not empty"):
        fffs.plan_pack(source, tmp_path / "set", 2)
    assert os.listdir(tmp_path / "set") == ["mine"]
    os.unlink(tmp_path / "set" / "mine")
    plan.commit(results)
    assert len(os.listdir(tmp_path / "set")) == 2


def test_a_part_that_is_replaced_while_it_is_put_in_place(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a late attempt at its task. link(2) then finds a file that has lost its last name, and fails."""
    plan, link = fffs.plan_pack(source, tmp_path / "set", 2), os.link
    for task in plan.tasks:
        task.run()
    calls = itertools.count()

    def busy(path: str, *arguments: Any, **named: Any) -> None:
        if next(calls) < 3:
            raise FileNotFoundError(errno.ENOENT, "replaced", path)
        link(path, *arguments, **named)

    monkeypatch.setattr(os, "link", busy)
    plan.commit()
    assert_same(source, tmp_path / "set", tmp_path / "copy")


def test_without_hard_links_a_commit_that_fails_keeps_the_parts(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts are renamed then, into a folder that is removed after a failure."""
    plan = fffs.plan_pack(source, tmp_path / "set", 2)
    for task in plan.tasks:
        task.run()

    def link(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "no hard links")

    monkeypatch.setattr(os, "link", link)
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "mine").touch()
    with pytest.raises(WriteError):
        plan.commit()
    os.unlink(tmp_path / "set" / "mine")
    plan.commit()
    assert_same(source, tmp_path / "set", tmp_path / "copy")
    assert sorted(os.listdir(tmp_path)) == ["copy", "photos", "set"]


@pytest.mark.parametrize("parts", [0, -1, 4097])
def test_impossible_numbers_of_parts_are_refused(source: Path, tmp_path: Path, parts: int) -> None:
    with pytest.raises(UsageError, match="from 1 to 4096"):
        fffs.plan_pack(source, tmp_path / "set", parts)


@pytest.mark.parametrize("target", ["photos/set", "photos/day1/set", "photos/../photos/set"])
def test_a_target_inside_the_source_is_refused(source: Path, tmp_path: Path, target: str) -> None:
    with pytest.raises(UsageError, match="inside the folder"):
        fffs.plan_pack(source, tmp_path / target, 2)


def test_a_plan_folder_that_others_can_write_to_is_not_trusted(source: Path, tmp_path: Path) -> None:
    plan = fffs.plan_pack(source, tmp_path / "set", 2)
    os.chmod(tmp_path / ".set.fffs-plan", 0o777)
    for act in (plan.tasks[0].run, lambda: fffs.PackPlan.load(tmp_path / "set"), lambda: plan_again(source, tmp_path)):
        with pytest.raises(UsageError, match="other users can write to it"):
            act()


def test_a_file_system_that_lets_everybody_write_says_so(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of Windows: every folder seems to have the mode that the mount gives it."""
    mkdir = os.mkdir

    def open_to_all(path: str | bytes, mode: int = 0o777, **others: Any) -> None:
        mkdir(path, mode, **others)
        os.chmod(path, 0o777)

    monkeypatch.setattr(os, "mkdir", open_to_all)
    with pytest.raises(UsageError, match="set: its file system lets other users write to every folder"):
        fffs.plan_pack(source, tmp_path / "set", 2)
    assert os.listdir(tmp_path) == ["photos"]


def test_a_target_that_appears_while_its_plan_is_made_is_named(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = os.mkdir

    def and_the_target(path: str | bytes, mode: int = 0o777, **others: Any) -> None:
        mkdir(path, mode, **others)
        if not (tmp_path / "set").exists():
            mkdir(tmp_path / "set")
            (tmp_path / "set/file").touch()

    monkeypatch.setattr(os, "mkdir", and_the_target)
    with pytest.raises(UsageError, match="set: already exists"):
        fffs.plan_pack(source, tmp_path / "set", 2)
    assert sorted(os.listdir(tmp_path)) == ["photos", "set"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_another_users_plan_folder_is_refused(source: Path, in_public: Path) -> None:
    shutil.copytree(source, in_public / "photos")
    in_public.chmod(0o777)
    plan = fffs.plan_pack(in_public / "photos", in_public / "set", 2)
    os.chown(in_public / ".set.fffs-plan", 1, 1)
    with pytest.raises(UsageError, match="other users can write to it"):
        plan.tasks[0].run()
    (in_public / ".other.fffs-plan").symlink_to(in_public / ".set.fffs-plan")
    with pytest.raises(UsageError, match="is not a folder"):
        fffs.plan_pack(in_public / "photos", in_public / "other", 2)


def test_where_a_server_gives_our_files_to_another_user(
    source: Path, tmp_path: Path, in_public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NFS with root_squash: this process seems to be another user than the owner of what it makes."""
    shutil.copytree(source, in_public / "photos")
    fffs.pack_folder(source, tmp_path / "set", parts=2)  # imports what the other user may be unable to
    with as_nobody(in_public):
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
        fffs.pack_folder("photos", "set", parts=2)
        plan = fffs.plan_pack("photos", "other", 2)
        assert os.listdir(".other.fffs-plan/parts") == []
        os.chmod(".other.fffs-plan", 0o777)
        with pytest.raises(UsageError, match="other users can write to it"):
            plan.tasks[0].run()
        assert len(os.listdir("set")) == 2
        monkeypatch.undo()


def test_another_folder_with_the_name_of_a_plans_is_left_alone(source: Path, tmp_path: Path) -> None:
    """Users who may write to the folder around it can give any folder of ours that name."""
    mine = tmp_path / ".set.fffs-plan"
    for name in ("parts", "results", "chapters"):
        (mine / name).mkdir(parents=True)
        (mine / name / "thesis.txt").write_text("years of work")
    before = snapshot(mine)
    for act in (
        lambda: plan_again(source, tmp_path),
        lambda: fffs.plan_pack(source, tmp_path / "set", 2, restart=True),
        lambda: fffs.pack_folder(source, tmp_path / "set", parts=2),
        lambda: remove_plan(tmp_path / "set"),
        lambda: record_parts.RecordParts.begin(tmp_path / "set").__enter__(),
    ):
        with pytest.raises(UsageError, match="not made by fffs"):
            act()
        assert not differences(before, snapshot(mine))
    assert sorted(os.listdir(tmp_path)) == [".set.fffs-plan", "photos"]


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_a_plan_folder_exchanged_for_another_while_a_task_runs_leads_nowhere(
    source: Path, tmp_path: Path, kind: str
) -> None:
    plan = fffs.plan_pack(source, tmp_path / "set", 2)
    place, mine = tmp_path / ".set.fffs-plan", tmp_path / "mine"
    for name in ("parts", "results"):
        (mine / name).mkdir(parents=True)
    before = snapshot(mine)

    def exchange() -> None:
        place.rename(tmp_path / "away")
        if kind == "folder":
            mine.rename(place)
        else:
            place.symlink_to(mine)

    with pytest.raises(UsageError, match="not there any more" if kind == "folder" else "is not a folder"):
        plan.tasks[0].run(progress=once(exchange))
    assert not differences(before, snapshot(place.resolve()))
    for act in (plan.tasks[0].run, plan.commit, plan.abort):
        with contextlib.suppress(UsageError):
            act()
        assert not differences(before, snapshot(place.resolve()))


def test_targets_with_long_names_have_folders_of_their_own(tmp_path: Path) -> None:
    names = ["x" * 210 + end for end in ("a", "b")]
    places = {PlanFolder(str(tmp_path / name)).path for name in names}
    assert len(places) == 2
    assert all(len(os.path.basename(place)) <= 255 for place in places)


def plan_again(source: Path, place: Path) -> object:
    return fffs.plan_pack(source, place / "set", 2)


def test_a_folder_that_cannot_be_listed_is_named(source: Path, tmp_path: Path, in_public: Path) -> None:
    shutil.copytree(source, in_public / "photos")
    os.chmod(in_public / "photos" / "day3", 0)
    os.chmod(in_public, 0o777)
    with as_nobody(in_public), pytest.raises(fffs.errors.ReadError, match="day3"):
        fffs.plan_pack(in_public / "photos", in_public / "set", 2)
    assert os.listdir(in_public) == ["photos"]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("at", ["before", "rename", "after", "removal"])
def test_an_interrupt_of_a_commit_leaves_the_plan_only_if_there_is_no_target(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException], at: str
) -> None:
    plan = fffs.plan_pack(source, tmp_path / "set", 2)
    for task in plan.tasks:
        task.run()

    def interrupt_once(owner: Any, name: str, *, afterwards: bool = False) -> None:
        usual = getattr(owner, name)

        def interrupted(*arguments: Any, **named: Any) -> Any:
            monkeypatch.setattr(owner, name, usual)
            if afterwards:
                usual(*arguments, **named)
            raise kind

        monkeypatch.setattr(owner, name, interrupted)

    match at:
        case "before":
            interrupt_once(os, "link", afterwards=True)
        case "rename":
            interrupt_once(os, "rename", afterwards=True)
        case "after":
            interrupt_once(PlanFolder, "remove")
        case "removal":
            interrupt_once(os, "rmdir")
    with pytest.raises(kind):
        plan.commit()
    if at == "before":
        assert sorted(os.listdir(tmp_path)) == [".set.fffs-plan", "photos"]
        plan.commit()
    assert sorted(os.listdir(tmp_path)) == ["photos", "set"]
    assert_same(source, tmp_path / "set", tmp_path / "copy")


def test_a_plan_is_readable_to_its_owner_whatever_the_umask_is(source: Path, in_public: Path) -> None:
    shutil.copytree(source, in_public / "photos")
    fffs.plan_pack(source, in_public / "first", 2).abort()  # imports what nobody need be able to read
    before = os.umask(0o777)
    try:
        with as_nobody(in_public):
            fffs.plan_pack("photos", "set", 2)
            plan = fffs.PackPlan.load("set")
            for task in plan.tasks:
                task.run()
            assert [result is not None for result in plan.results()] == [True, True]
            plan.commit()
    finally:
        os.umask(before)
    assert sorted(os.listdir(in_public)) == ["photos", "set"]
    assert_same(source, in_public / "set", in_public / "copy")


def test_numbers_of_numpy_are_numbers_of_parts(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a").write_bytes(b"1")
    with fffs.FileWriter(tmp_path / "r.ffr") as writer:
        writer.write_one(b"1")
    two = np.int64(2)
    for plan in (
        fffs.plan_pack(tmp_path / "src", tmp_path / "a", two),  # type: ignore[arg-type]
        fffs.plan_convert(tmp_path / "r.ffr", tmp_path / "b", two, to="tfrecord"),  # type: ignore[arg-type]
    ):
        plan.commit([task.run() for task in plan.tasks])
    assert os.listdir(tmp_path / "b") == ["b-00000-of-00001.tfrecord"]


def test_what_ended_a_job_is_shown_whatever_fails_then(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(_: object) -> None:
        raise ReadError(errno.EIO, "the plan")

    def interrupt(done: int, _: int) -> None:
        if not done:
            return
        monkeypatch.setattr(PlanFolder, "fingerprint", unreadable)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fffs.pack_folder(source, tmp_path / "set", parts=2, progress=interrupt)
