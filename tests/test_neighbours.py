"""When a data set lets its reader bring neighbours along: small records, and memory for all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fffs import FileWriter, memory
from fffs.torch import Dataset, neighbours


def make(path: Path, count: int, size: int) -> Path:
    with FileWriter(path, count) as writer:
        for _ in range(count):
            writer.write_one(bytes(size))
    return path


@pytest.mark.parametrize(("size", "around"), [(100, neighbours.BLOCK), (30_000, neighbours.BLOCK), (33_000, 0)])
def test_only_small_records_are_read_with_their_neighbours(tmp_path: Path, size: int, around: int) -> None:
    with Dataset(make(tmp_path / "p.ffr", 10, size)).reader as reader:
        assert reader.store.around == around


def test_only_what_fits_into_half_of_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(tmp_path / "p.ffr", 10, 10_000)
    for available, around in ((2 * path.stat().st_size, neighbours.BLOCK), (2 * path.stat().st_size - 2, 0)):
        monkeypatch.setattr(neighbours, "available_memory", lambda available=available: available)
        with Dataset(path).reader as reader:
            assert reader.store.around == around


@pytest.mark.parametrize(
    ("own", "limits", "available"),
    [
        ("0::/", {}, 4_096_000),
        ("0::/", {"": "1000"}, 1000),
        ("0::/a/b", {"a": "2000", "a/b": "3000"}, 2000),
        ("0::/a/b", {"a": "max", "a/b": "3000"}, 3000),
        ("0::/a", {"a": "5000000"}, 4_096_000),
        ("0::/../other", {"other": "7"}, 7),
        ("3:cpu:/a", {"a": "1"}, 4_096_000),
    ],
)
def test_memory_is_what_the_machine_and_each_cgroup_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, limits: dict[str, str], available: int
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:  9000 kB\nMemFree:  10 kB\nMemAvailable:    4000 kB\n")
    (tmp_path / "own").write_text(f"12:pids:/x\n{own}\n")
    for folder, limit in limits.items():
        (tmp_path / "groups" / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / folder / "memory.max").write_text(limit + "\n")
    for name, path in {"_MEMINFO": "meminfo", "_OWN": "own", "_CGROUPS": "groups"}.items():
        monkeypatch.setattr(memory, name, str(tmp_path / path))
    assert memory.available_memory() == available


def test_this_machine_has_memory() -> None:
    assert memory.available_memory() > 1 << 20
