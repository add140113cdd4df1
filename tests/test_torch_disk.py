"""How data sets are read from the disk, by the size of their records, and their total size compared with the memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from inside import disk, memory

from fffs import FileReader, FileWriter
from fffs.torch import Dataset


def make(path: Path, count: int, size: int) -> Path:
    with FileWriter(path, count) as writer:
        for _ in range(count):
            writer.write_one(bytes(size))
    return path


@pytest.mark.parametrize(("size", "around"), [(100, disk.BLOCK), (30_000, disk.BLOCK), (33_000, 0)])
def test_only_small_records_are_read_with_their_neighbours(tmp_path: Path, size: int, around: int) -> None:
    with Dataset(make(tmp_path / "p.ffr", 10, size)).reader as reader:
        assert reader.store.policy.around == around


def test_only_what_fits_into_half_of_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(tmp_path / "p.ffr", 10, 10_000)
    for available, around in ((2 * path.stat().st_size, disk.BLOCK), (2 * path.stat().st_size - 2, 0)):
        monkeypatch.setattr(disk, "available_memory", lambda available=available: available)
        with Dataset(path).reader as reader:
            assert reader.store.policy.around == around


@pytest.mark.parametrize("size", [4000, 5000, 100_000])
def test_what_is_much_larger_than_memory_is_read_past_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    path = make(tmp_path / "p.ffr", 10, size)
    with FileReader(path) as reader:
        possible = reader.use_direct() and size > disk.PAGE
    length = path.stat().st_size
    for available, direct in ((length // 2 + 1, False), (length // 2 - 1, possible), (0, False)):
        monkeypatch.setattr(disk, "available_memory", lambda available=available: available)
        dataset = Dataset(path)
        assert (dataset.reader.store.policy.direct, dataset.reader.store.policy.around) == (direct, 0)
        assert [len(record) for record in dataset[range(10)]] == [size] * 10
        dataset.reader.close()


@pytest.mark.parametrize(
    ("own", "files", "available"),
    [
        ("0::/", {}, 4_096_000),
        ("0::/", {"memory.max": "1000"}, 1000),
        ("0::/a/b", {"a/memory.max": "2000", "a/b/memory.max": "3000"}, 2000),
        ("0::/a/b", {"a/memory.max": "max", "a/b/memory.max": "3000"}, 3000),
        ("0::/a/b", {"a/memory.max": "3000", "a/memory.stat": "file 7\nanon 2500\n", "a/b/memory.max": "2000"}, 500),
        ("0::/a", {"a/memory.max": "3000", "a/memory.stat": "anon 3001"}, 0),
        ("0::/a", {"a/memory.max": "3000", "a/memory.stat": "anon 1000\nshmem 500\nshmem_thp 9"}, 1500),
        ("0::/a", {"a/memory.max": "5000000"}, 4_096_000),
        ("0::/../other", {"other/memory.max": "7"}, 7),
        ("0::/a\rb\x85c\u2028d", {"a\rb\x85c\u2028d/memory.max": "8"}, 8),
        ("3:cpu:/a", {"a/memory.max": "1"}, 4_096_000),
        ("4:memory:/a", {"memory/a/memory.limit_in_bytes": "70", "memory/a/memory.stat": "rss 1\ntotal_rss 30"}, 40),
        (
            "4:memory:/a",
            {"memory/a/memory.limit_in_bytes": "70", "memory/a/memory.stat": "total_rss 3\ntotal_shmem 2"},
            65,
        ),
        ("4:cpu,memory:/a\n0::/", {"memory/memory.limit_in_bytes": "60", "memory.max": "50"}, 50),
    ],
)
def test_memory_is_what_the_machine_and_each_cgroup_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, files: dict[str, str], available: int
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:  9000 kB\nMemFree:  10 kB\nMemAvailable:    4000 kB\n")
    (tmp_path / "own").write_text(f"12:pids:/x\n{own}\n")
    for name, content in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(content + "\n")
    for name, path in {"_MEMINFO": "meminfo", "_OWN": "own", "_CGROUPS": "groups"}.items():
        monkeypatch.setattr(memory, name, str(tmp_path / path))
    assert memory.available_memory() == available


def test_where_nobody_tells_of_memory_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_OWN", "_CGROUPS"):
        monkeypatch.setattr(memory, name, str(tmp_path / "none"))
    assert memory.available_memory() > 1 << 20
    monkeypatch.setattr(memory, "_MEMINFO", str(tmp_path / "none"))
    assert memory.available_memory() == 0
    with Dataset(make(tmp_path / "p.ffr", 10, 100)).reader as reader:
        assert reader.store.policy.around == 0


def test_not_where_other_machines_read_their_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(tmp_path / "p.ffr", 10, 100)
    monkeypatch.setenv("WORLD_SIZE", "8")
    for local, around in (("8", disk.BLOCK), ("4", 0)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
        with Dataset(path).reader as reader:
            assert reader.store.policy.around == around


def test_this_machine_has_memory() -> None:
    assert memory.available_memory() > 1 << 20
