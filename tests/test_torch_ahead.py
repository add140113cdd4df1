"""A loader without workers prefetches the next batch as long as batches come from disks."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_model import tells_what_is_cached
from inside import ahead, has_fixed_order
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

import fffs
import fffs.torch
from fffs.errors import RecordIndexError

COUNT = 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with fffs.FileWriter(tmp_path / "a.ffr", COUNT) as writer:
        for k in range(COUNT):
            writer.write_one(bytes([k]) * (k + 1))
    return tmp_path / "a.ffr"


class Noting(fffs.torch.Dataset):
    """Records its requests in order."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.notes: list[tuple[str, list[int]]] = []

    def process(self, indices: list[int], data: list[Any]) -> list[int]:
        self.notes.append(("read", indices))
        return indices

    def announce(self, indices: list[int]) -> None:
        self.notes.append(("announced", list(indices)))
        super().announce(indices)


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads always come from a disk."""
    monkeypatch.setattr(ahead, "_from_disks", itertools.count().__next__)


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("shuffle", [False, True])
def test_each_batch_is_announced_before_the_one_before_is_read(path: Path, shuffle: bool) -> None:
    dataset = Noting(path)
    generator = torch.Generator().manual_seed(5)
    loader = fffs.torch.DataLoader(dataset, batch_size=6, shuffle=shuffle, generator=generator)
    stock = torch.utils.data.DataLoader(
        range(COUNT), batch_size=6, shuffle=shuffle, generator=torch.Generator().manual_seed(5)
    )
    for _ in range(2):
        dataset.notes.clear()
        expected = [batch.tolist() for batch in stock]
        assert [batch.tolist() for batch in loader] == expected
        a, b, c, d = expected  # the last one is not requested early
        assert dataset.notes == [("announced", b), ("read", a), ("announced", c), ("read", b), ("read", c), ("read", d)]


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize(("size", "drop_last", "taken"), [(5, False, 4), (8, False, 2), (8, True, 2), (6, False, 3)])
def test_who_stops_early_has_torchs_order_in_the_next_epoch(path: Path, size: int, drop_last: bool, taken: int) -> None:
    def epochs(loader: Any) -> list[Any]:
        return [[batch.tolist() for batch in itertools.islice(loader, taken)] for _ in range(3)]

    arguments: dict[str, Any] = {"batch_size": size, "shuffle": True, "drop_last": drop_last}
    ours = fffs.torch.DataLoader(Noting(path), **arguments, generator=torch.Generator().manual_seed(3))
    generator = torch.Generator().manual_seed(3)
    stock: Any = torch.utils.data.DataLoader(range(COUNT), **arguments, generator=generator)  # type: ignore[arg-type]
    assert epochs(ours) == epochs(stock)


@pytest.mark.usefixtures("busy")
def test_what_is_passed_over_is_not_announced(path: Path) -> None:
    dataset = Noting(path)
    loader = fffs.torch.DataLoader(dataset, batch_size=4)
    loader.set_step(2)
    assert [int(batch[0]) for batch in loader] == [8, 12, 16]
    assert [(kind, indices[0]) for kind, indices in dataset.notes] == [
        ("announced", 12), ("read", 8), ("read", 12), ("read", 16),
    ]  # fmt: skip


@pytest.mark.usefixtures("busy")
def test_a_run_resumes_where_it_was_and_not_where_it_looked(path: Path) -> None:
    def loader() -> fffs.torch.DataLoader:
        generator = torch.Generator().manual_seed(7)
        return fffs.torch.DataLoader(Noting(path), batch_size=3, shuffle=True, generator=generator)

    whole = [batch.tolist() for batch in loader()]
    first = loader()
    taken = [batch.tolist() for batch in itertools.islice(first, 2)]
    other = loader()
    other.load_state_dict(first.state_dict())
    assert taken + [batch.tolist() for batch in other] == whole


def test_nothing_is_announced_while_all_is_in_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = iter([0, 0, 4, 4])
    monkeypatch.setattr(ahead, "_from_disks", numbers.__next__)
    dataset = Noting(path)
    list(fffs.torch.DataLoader(dataset, batch_size=4))
    assert [indices for kind, indices in dataset.notes if kind == "announced"] == [[8, 9, 10, 11]]
    assert list(numbers) == []


@pytest.mark.usefixtures("busy")
def test_workers_read_ahead_without_it(path: Path) -> None:
    dataset = Noting(path)
    loader = fffs.torch.DataLoader(dataset, batch_size=6, num_workers=1)
    assert [int(batch[0]) for batch in loader] == [0, 6, 12, 18]
    assert dataset.notes == []


@pytest.mark.usefixtures("busy")
def test_errors_come_from_the_read(path: Path) -> None:
    dataset = Noting(path)
    loader = fffs.torch.DataLoader(fffs.torch.Subset(dataset, [0, 1, 99, 2, 3]))
    found = []
    with pytest.raises(RecordIndexError, match="99"):
        for batch in loader:
            found += batch.tolist()
    assert found == [0, 1]
    assert ("announced", [99]) in dataset.notes


class Unable(fffs.torch.Dataset):
    announce = 4  # type: ignore[assignment]


class Interrupted(Noting):
    def announce(self, indices: list[int]) -> None:
        if indices[0] == 8:
            self.notes.append(("interrupted", indices))
            raise KeyboardInterrupt


@pytest.mark.usefixtures("busy")
def test_what_fails_before_a_batch_loses_none(path: Path) -> None:
    assert len(list(fffs.torch.DataLoader(Unable(path), batch_size=4))) == 5
    dataset = Interrupted(path)
    batches, found = iter(fffs.torch.DataLoader(dataset, batch_size=4)), []
    with pytest.raises(KeyboardInterrupt):
        for batch in batches:
            found.append(int(batch[0]))
    assert dataset.notes[-1][0] == "interrupted"
    found += [int(batch[0]) for batch in batches]
    assert found == [0, 4, 8, 12, 16]


class Own(Sampler[int]):
    def __iter__(self) -> Any:
        return iter(range(COUNT))

    def __len__(self) -> int:
        return COUNT


def test_only_samplers_with_a_fixed_order_are_asked_early(path: Path) -> None:
    data = range(COUNT)
    for sampler in (
        SequentialSampler(data),
        RandomSampler(data),
        SubsetRandomSampler(data),
        WeightedRandomSampler([1.0] * COUNT, COUNT),
        DistributedSampler(Noting(path), 2, 0),
    ):
        assert has_fixed_order(sampler)
        assert has_fixed_order(BatchSampler(sampler, 3, False))
    assert not has_fixed_order(Own())
    assert not has_fixed_order(BatchSampler(Own(), 3, False))
    assert not has_fixed_order(RandomSampler(data, replacement=True))
    assert not has_fixed_order(RandomSampler(data, num_samples=COUNT + 1))


@pytest.mark.usefixtures("busy")
def test_other_samplers_are_asked_when_a_batch_is_wanted(path: Path) -> None:
    dataset = Noting(path)
    list(fffs.torch.DataLoader(dataset, batch_size=7, sampler=Own()))
    assert {kind for kind, _ in dataset.notes} == {"read"}


def test_data_sets_of_data_sets_pass_it_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[int]] = []
    monkeypatch.setattr(fffs.FileReader, "prefetch", lambda self, indices: asked.append(list(indices)))
    dataset = fffs.torch.Dataset(path)
    fffs.torch.Subset(dataset, range(0, COUNT, 2)).announce([3, -1])
    (dataset + fffs.torch.Subset(dataset, [9, 8, 7])).announce([1, COUNT + 2, 2, COUNT])
    assert asked == [[6, 18], [1, 2], [7, 9]]

    class Own(fffs.torch.Dataset):
        def __getitem__(self, indices: Any) -> Any:
            return indices

    Own(path).announce([1])
    assert len(asked) == 3


def test_of_a_packed_folder_the_records_are_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b/1", "a/2", "a/1"):
        (tmp_path / "f" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "f" / name).write_text(name)
    fffs.pack_folder(tmp_path / "f", tmp_path / "f.ffr")
    folder = fffs.torch.PackedFolder(tmp_path / "f.ffr")
    asked: list[int] = []
    monkeypatch.setattr(fffs.FileReader, "prefetch", lambda self, indices: asked.extend(indices))
    folder.announce([2, 0, -2])
    assert [bytes(folder.reader.read_one(record)) for record in asked] == [b"b/1", b"a/1", b"a/2"]


def test_the_kernel_tells_what_comes_from_disks(tmp_path: Path) -> None:
    if not tells_what_is_cached(str(tmp_path)):
        pytest.skip("this file system does not tell what is in memory")
    target = tmp_path / "cold.ffr"
    with fffs.FileWriter(target, 1) as writer:
        writer.write_one(bytes(1 << 20))
    with target.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    before = ahead._from_disks()
    with fffs.FileReader(target) as reader:
        reader.read([0])
    assert ahead._from_disks() > before
