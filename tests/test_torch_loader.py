"""fffs.torch.DataLoader: torch's order and results, with any number of workers and all start methods."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from inside import joined_index
from torch.utils.data import BatchSampler, SequentialSampler
from torch.utils.data._utils.collate import default_collate_fn_map
from torch_samples import (
    WARNINGS,
    BatchCounter,
    Ending,
    EndingNumbers,
    Failing,
    Noisy,
    Numbers,
    Own,
    Tagged,
    content,
    end_at_30,
    mixed,
    plain,
    write,
)

import fffs
import fffs.torch
from fffs.torch import DataLoader, Dataset, RecordBatch

pytestmark = [pytest.mark.filterwarnings(text) for text in WARNINGS]
StockLoader = torch.utils.data.DataLoader
N = 50


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("records") / "a.ffr", N)


@pytest.fixture(scope="module")
def ragged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("records") / "b.ffr", N, None)


def seeded(seed: int = 7) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ---------------------------------------------------------------- compared with torch


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("style", [Tagged, Own])
def test_batches_and_their_order_are_torchs(path: Path, style: Callable[[Path], Dataset], workers: int) -> None:
    def epochs(loader: Any) -> list[Any]:
        return [plain(loader) for _ in range(2)]

    arguments: dict[str, Any] = {"batch_size": 8, "shuffle": True, "num_workers": workers}
    ours = DataLoader(style(path), **arguments, generator=seeded())
    assert epochs(ours) == epochs(StockLoader(style(path), **arguments, generator=seeded()))
    assert len(ours) == len(iter(ours)) == 7


@pytest.mark.parametrize("workers", [0, 2])
def test_the_order_of_the_global_generator_is_torchs(path: Path, workers: int) -> None:
    torch.manual_seed(3)
    ours = [plain(DataLoader(Tagged(path), 8, shuffle=True, num_workers=workers)) for _ in range(2)]
    after = torch.rand(1)
    torch.manual_seed(3)
    assert ours == [plain(StockLoader(Tagged(path), 8, shuffle=True, num_workers=workers)) for _ in range(2)]
    assert torch.equal(after, torch.rand(1))


def test_two_iterators_of_one_loader_are_torchs(path: Path) -> None:
    def both(loader: Any) -> list[Any]:
        return [plain(pair) for pair in zip(loader, loader, strict=True)]

    arguments: dict[str, Any] = {"batch_size": 8, "shuffle": True}
    ours = both(DataLoader(Tagged(path), **arguments, generator=seeded()))
    assert ours == both(StockLoader(Tagged(path), **arguments, generator=seeded()))


def test_persistent_workers_give_torchs_epochs(path: Path) -> None:
    arguments: dict[str, Any] = {"batch_size": 8, "shuffle": True, "num_workers": 2, "persistent_workers": True}
    ours, stock = (kind(Tagged(path), **arguments, generator=seeded()) for kind in (DataLoader, StockLoader))
    for _ in range(3):
        assert plain(ours) == plain(stock)
    next(iter(ours))  # an epoch that is not completed
    next(iter(stock))
    assert plain(ours) == plain(stock)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_need_not_be_forked(path: Path, method: str) -> None:
    loader = DataLoader(Tagged(path), 10, num_workers=1, multiprocessing_context=method, pin_memory=True)
    assert plain(loader) == plain(StockLoader(Tagged(path), 10))


@pytest.mark.parametrize("workers", [0, 2])
def test_drop_last_and_batch_samplers(path: Path, workers: int) -> None:
    assert [len(keys) for keys, _ in DataLoader(Tagged(path), 8, drop_last=True, num_workers=workers)] == [8] * 6
    batches = [[3, 1], [4], [1, 1, 1]]
    loader = DataLoader(Tagged(path), batch_sampler=batches, num_workers=workers)
    assert [keys.tolist() for keys, _ in loader] == batches


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("style", [Tagged, Own])
def test_without_batches_samples_come_one_by_one(path: Path, style: Callable[[Path], Dataset], workers: int) -> None:
    samples = list(DataLoader(style(path), batch_size=None, num_workers=workers))
    assert [k for k, _ in samples] == list(range(N))
    assert all(isinstance(record, torch.Tensor) for _, record in samples)
    lists = BatchSampler(SequentialSampler(range(N)), 20, drop_last=False)
    found = list(DataLoader(style(path), batch_size=None, sampler=lists, num_workers=workers))
    assert [[k for k, _ in batch] for batch in found] == list(lists)


def _mark(_worker: int) -> None:
    info = torch.utils.data.get_worker_info()
    assert info is not None
    info.dataset.mark = "marked"  # type: ignore[attr-defined]


class Marked(Tagged):
    mark = ""

    def process(self, indices: list[int], data: list[Any]) -> list[Any]:
        return [(k, self.mark) for k in indices]


def test_without_batches_the_data_set_of_a_loader_and_its_workers_is_the_users(path: Path) -> None:
    """Frameworks index it and make other loaders of it."""
    dataset = Marked(path)
    loader = DataLoader(dataset, batch_size=None, num_workers=1, worker_init_fn=_mark)
    assert loader.dataset is dataset
    assert plain(loader) == [[k, "marked"] for k in range(N)]
    stock = StockLoader(dataset, batch_size=None)
    assert (len(loader), loader.batch_size, loader.batch_sampler) == (len(stock), None, None)
    assert type(loader.sampler) is type(stock.sampler)
    other = DataLoader(loader.dataset, batch_size=None, sampler=[7, 5], collate_fn=loader.collate_fn)
    assert plain(other) == [[7, ""], [5, ""]]


class Items(Tagged):
    """It gives another form of samples in batches."""

    def __getitems__(self, indices: Any) -> Any:
        return [list(sample) for sample in super().__getitems__(indices)]


def test_without_batches_getitems_of_a_user_is_not_called(path: Path) -> None:
    ours, stock = (kind(Items(path), batch_size=None, sampler=[3, 1]) for kind in (DataLoader, StockLoader))
    assert plain(ours) == plain(stock) == plain(DataLoader(Tagged(path), batch_size=None, sampler=[3, 1]))


class Keys:
    """A collate function without attributes, and one that is a method."""

    __slots__ = ()

    def __call__(self, batch: list[Any]) -> Any:
        return torch.tensor([len(record) for record in batch])

    def method(self, batch: list[Any]) -> Any:
        return self(batch)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("collate", [Keys(), Keys().method, lambda batch: Keys()(batch)])
def test_a_collate_fn_may_be_set_later(path: Path, workers: int, collate: Any) -> None:
    loader = DataLoader(Dataset(path), 25, num_workers=workers)
    before, expected = iter(loader), plain(loader)
    first = plain([next(before)])
    loader.collate_fn = collate
    assert plain(loader) == [[64] * 25] * 2
    assert first + plain(before) == expected  # the iterator that was there has the old one


@pytest.mark.parametrize("workers", [0, 2])
def test_other_data_sets_are_loaded_as_torch_does(workers: int) -> None:
    for arguments in ({"batch_size": 4}, {"batch_size": None}, {"batch_size": 5, "collate_fn": sorted}):
        ours = DataLoader(Numbers(22), **arguments, num_workers=workers, shuffle=True, generator=seeded())
        stock = StockLoader(Numbers(22), **arguments, num_workers=workers, shuffle=True, generator=seeded())
        assert plain(ours) == plain(stock)


class Stream(torch.utils.data.IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(10))


@pytest.mark.parametrize("workers", [0, 1])
def test_streams_are_loaded_as_torch_does(workers: int) -> None:
    loader = DataLoader(Stream(), 4, num_workers=workers)
    assert plain(loader) == plain(StockLoader(Stream(), 4, num_workers=workers))
    with pytest.raises(ValueError, match="iterable"):
        loader.set_step(1)


@pytest.mark.parametrize("kind", [DataLoader, StockLoader])
@pytest.mark.parametrize("workers", [0, 2])
def test_whole_batches_are_read_also_by_torchs_loader(path: Path, kind: Any, workers: int) -> None:
    assert plain(kind(BatchCounter(path), batch_size=25, num_workers=workers)) == [[25] * 25] * 2


def test_subsets_and_concatenations_are_loaded_in_batches(path: Path) -> None:
    whole = BatchCounter(path)
    assert plain(DataLoader(fffs.torch.Subset(whole, range(6)), 6, num_workers=1)) == [[6] * 6]
    assert plain(DataLoader(whole + whole, 100, num_workers=1)) == [[50] * 100]


def test_an_empty_data_set_has_no_batches(tmp_path: Path) -> None:
    empty = Dataset(write(tmp_path / "empty.ffr", 0))
    for workers in (0, 1):
        assert list(DataLoader(empty, 4, num_workers=workers)) == []


# ---------------------------------------------------------------- raw records


@pytest.mark.parametrize("workers", [0, 2])
def test_raw_records_of_one_length_become_a_matrix(path: Path, workers: int) -> None:
    batches = list(DataLoader(Dataset(path), 8, num_workers=workers))
    stock = list(StockLoader(Dataset(path), 8))
    assert all(torch.equal(a, b) for a, b in zip(batches, stock, strict=True))
    assert batches[0].dtype == torch.uint8


@pytest.mark.parametrize(("lengths", "equal"), [("", False), ("7", True), ("77777", True), ("777777778", False)])
def test_lengths_are_looked_at_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lengths: str, equal: bool
) -> None:
    monkeypatch.setattr(joined_index, "_TOGETHER", 2)
    with fffs.FileWriter(tmp_path / "x.ffr", len(lengths)) as writer:
        for length in lengths:
            writer.write_one(bytes(int(length)))
    with fffs.FileReader(tmp_path / "x.ffr") as reader:
        assert reader.store.index.have_one_length == equal


def _refuse_to_look(worker: int) -> None:
    info: Any = torch.utils.data.get_worker_info()
    [reader] = info.dataset.ffreaders()
    assert "have_one_length" in vars(reader.store.index)


@pytest.mark.parametrize("subset", [False, True])
def test_workers_that_are_forked_do_not_look_at_all_lengths(path: Path, subset: bool) -> None:
    data: Any = Dataset(path)
    if subset:
        data = fffs.torch.Subset(data, range(len(data)))
    loader = DataLoader(data, 8, num_workers=2, multiprocessing_context="fork", worker_init_fn=_refuse_to_look)
    assert len(list(loader)) == 7


@pytest.mark.parametrize("workers", [0, 2])
def test_raw_records_of_different_lengths_become_a_record_batch(ragged: Path, workers: int) -> None:
    dataset = fffs.torch.Subset(Dataset(ragged), [0, 5, 5, 49, 48])
    first, second, third = DataLoader(dataset, 2, num_workers=workers)
    assert isinstance(first, RecordBatch)
    assert [bytes(record.tolist()) for batch in (first, second, third) for record in batch] == [
        content(k, None) for k in (0, 5, 5, 49, 48)
    ]
    assert len(first) == 2
    assert first.offsets.tolist() == [0, 0, 185]
    assert torch.equal(first[-1], second[0])
    with pytest.raises(IndexError):
        first[2]
    first.data[0] += 1
    assert second[0][0] != first[1][0]


def test_a_collate_fn_gets_what_the_data_set_gives(ragged: Path) -> None:
    loader = DataLoader(Dataset(ragged), 3, num_workers=2, collate_fn=_lengths)
    assert [batch["lengths"].tolist() for batch in loader][:2] == [[0, 37, 74], [111, 148, 185]]
    pair = next(iter(loader))["pair"]
    assert isinstance(pair, _Pair)
    assert pair.right == "text"
    assert pair.left.tolist() == list(content(0, None) + content(1, None))


class _Pair(tuple[Any, Any]):
    _fields = ("left", "right")

    def __new__(cls, left: Any, right: Any) -> _Pair:
        return super().__new__(cls, (left, right))

    def __reduce__(self) -> Any:
        return _Pair, tuple(self)

    left = property(lambda self: self[0])
    right = property(lambda self: self[1])


def _lengths(samples: list[Any]) -> dict[str, Any]:
    joined = torch.from_numpy(np.concatenate(samples[:2]))
    return {"lengths": torch.tensor([len(sample) for sample in samples]), "pair": _Pair(joined, "text")}


# ---------------------------------------------------------------- random numbers


def _half(batch: Any, *, collate_fn_map: Any = None) -> Any:
    return torch.nn.utils.rnn.pad_sequence([torch.as_tensor(item) for item in batch]).to(torch.float16)


class Arrays(Dataset):
    def process(self, indices: Any, data: Any) -> Any:
        return [(np.arange(i % 3 + 1), torch.arange(i % 3 + 1)) for i in indices]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kinds", [[torch.Tensor], [np.ndarray, torch.Tensor]])
@pytest.mark.parametrize("style", [Dataset, Arrays])
def test_the_programs_own_functions_of_torchs_collate_are_called(
    ragged: Path, style: Any, kinds: list[Any], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in kinds:
        monkeypatch.setitem(default_collate_fn_map, kind, _half)
    expected = torch.utils.data.DataLoader(style(ragged), batch_size=5, num_workers=0)
    loader = DataLoader(style(ragged), batch_size=5, num_workers=workers)
    for found, wanted in zip(loader, expected, strict=True):
        for tensor, other in zip(*(batch if style is Arrays else [batch] for batch in (found, wanted)), strict=True):
            assert tensor.dtype == torch.float16
            assert torch.equal(tensor, other)


def _register(worker: int) -> None:
    default_collate_fn_map[np.ndarray] = _half


def test_functions_that_a_worker_registers_are_called(ragged: Path) -> None:
    loaders = [
        kind(Dataset(ragged), batch_size=5, num_workers=1, worker_init_fn=_register)
        for kind in (DataLoader, torch.utils.data.DataLoader)
    ]
    for found, wanted in zip(*loaders, strict=True):
        assert found.dtype == torch.float16
        assert torch.equal(found, wanted)


class Endless(list[list[int]]):
    """Makes another sampler at each question."""

    @property
    def sampler(self) -> Any:
        return Endless(self)


class Itself(list[list[int]]):
    """Offers itself to trainers that look for ``batch_sampler.sampler.set_epoch``."""

    @property
    def sampler(self) -> Any:
        return self


@pytest.mark.parametrize("kind", [Itself, Endless])
def test_samplers_that_lead_to_no_end(path: Path, kind: Any) -> None:
    loader = DataLoader(Numbers(path), batch_sampler=kind([[0, 1], [2]]))
    assert plain(loader) == plain(torch.utils.data.DataLoader(Numbers(path), batch_sampler=kind([[0, 1], [2]])))


def test_augmentations_do_not_depend_on_the_number_of_workers(path: Path) -> None:
    def epochs(workers: int) -> list[Any]:
        loader = DataLoader(Noisy(path), 8, shuffle=True, num_workers=workers, generator=seeded())
        return [plain(loader) for _ in range(2)]

    found = epochs(0)
    assert found == epochs(1) == epochs(3)
    assert found[0] != found[1]
    noise = [sample for epoch in found for batch in epoch for sample in batch[1]]
    assert len({tuple(pair) for pair in noise}) == 2 * N


def test_random_numbers_of_a_collate_fn_do_not_depend_on_the_number_of_workers(path: Path) -> None:
    def epochs(workers: int) -> list[Any]:
        torch.manual_seed(5)
        loader = DataLoader(Noisy(path), 8, shuffle=True, num_workers=workers, collate_fn=mixed)
        return [plain(loader) for _ in range(2)]

    assert epochs(0) == epochs(2)


def test_a_loader_in_a_loader_leaves_the_others_random_numbers_alone(path: Path) -> None:
    class Nested(Noisy):
        def process(self, indices: list[int], data: list[Any]) -> list[Any]:
            next(iter(inner))
            return super().process(indices, data)

    inner = DataLoader(Noisy(path), 8, generator=seeded())
    alone, nested = (plain(DataLoader(kind(path), 8, generator=seeded())) for kind in (Noisy, Nested))
    assert alone == nested


def test_persistent_workers_draw_new_augmentations_each_epoch(path: Path) -> None:
    loader = DataLoader(Noisy(path), 25, num_workers=1, persistent_workers=True, generator=seeded())
    assert plain(loader) != plain(loader)


def test_loading_in_this_process_leaves_its_generators_alone(path: Path) -> None:
    torch.manual_seed(1)
    expected = torch.rand(1)
    loader = DataLoader(Noisy(path), 8, collate_fn=mixed, generator=seeded())
    torch.manual_seed(1)
    for _ in loader:
        pass
    assert torch.equal(torch.rand(1), expected)


# ---------------------------------------------------------------- failures


@pytest.mark.parametrize("kind", [DataLoader, StockLoader])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_record_is_named_in_the_parent(tmp_path: Path, kind: Any, workers: int) -> None:
    file = write(tmp_path / "damaged.ffr", N)
    data = bytearray(file.read_bytes())
    data[12 + 12 * N + 64 * 13] ^= 1
    file.write_bytes(data)
    for dataset in (Dataset(file), Tagged(file)):
        batches = iter(kind(dataset, batch_size=5, num_workers=workers))
        next(batches), next(batches)
        with pytest.raises(fffs.errors.ChecksumError, match=r"damaged\.ffr: record 13: (Sample 13: )?checksum mism"):
            next(batches)
        if kind is StockLoader and workers:
            batches._shutdown_workers()  # otherwise collected during another test


def test_after_an_error_workers_end_with_the_iterator(path: Path) -> None:
    gc.disable()
    try:
        with pytest.raises(ZeroDivisionError):
            list(DataLoader(Failing(path), 4, num_workers=2))
        assert multiprocessing.active_children() == []
    finally:
        gc.enable()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_exception_of_process_reaches_the_caller(path: Path, workers: int) -> None:
    batches = iter(DataLoader(Failing(path), 4, num_workers=workers))
    next(batches)
    with pytest.raises(ZeroDivisionError, match="record 5 is odd"):
        next(batches)
    assert next(batches)[0].tolist() == [8, 9, 10, 11]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("where", ["process", "other", "collate_fn"])
def test_stop_iteration_in_a_batch_does_not_end_the_epoch(path: Path, where: str, workers: int) -> None:
    ends = {"process": Ending(path), "other": EndingNumbers(), "collate_fn": Tagged(path)}
    loader = DataLoader(ends[where], 10, num_workers=workers, collate_fn=end_at_30 if where == "collate_fn" else list)
    batches = iter(loader)
    first = [next(batches) for _ in range(3)]
    message = "StopIteration was raised " + ("by collate_fn" if where == "collate_fn" else "while batch 3 was loaded")
    with pytest.raises(RuntimeError, match=message):
        next(batches)
    assert loader.state_dict()["position"] == 4
    assert [*map(len, first), *map(len, batches)] == [10] * 4
    assert loader.state_dict()["position"] is None  # the epoch is over


class SlowAtFirst(EndingNumbers):
    def __getitem__(self, index: int) -> int:
        time.sleep(0 if index else 1)
        return super().__getitem__(index)


def test_stop_iteration_in_a_batch_does_not_end_an_epoch_whose_batches_come_in_any_order() -> None:
    batches = iter(DataLoader(SlowAtFirst(), 10, num_workers=2, in_order=False, collate_fn=list))
    assert next(batches)[0] == 10
    with pytest.raises(RuntimeError, match="StopIteration was raised"):
        next(batches)
    assert sorted(batch[0] for batch in batches) == [0, 20, 40]


class Pairs(torch.utils.data.IterableDataset[tuple[int, int]]):
    def __iter__(self) -> Any:
        return ((k, k) for k in range(50))


@pytest.mark.parametrize("workers", [0, 1])
def test_stop_iteration_in_collate_fn_does_not_end_an_iterable_data_set(workers: int) -> None:
    batches = iter(DataLoader(Pairs(), 10, num_workers=workers, collate_fn=end_at_30))
    assert [len(next(batches)) for _ in range(3)] == [10] * 3
    with pytest.raises(RuntimeError, match="StopIteration was raised by collate_fn"):
        next(batches)
    assert [*map(len, batches)] == [10]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sampler_that_names_no_record_is_an_index_error(path: Path, workers: int) -> None:
    for dataset in (Dataset(path), Tagged(path)):
        with pytest.raises(IndexError, match="no record 50"):
            list(DataLoader(dataset, 2, sampler=[1, N], num_workers=workers))


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_that_cannot_be_stacked_are_torchs_error(ragged: Path, workers: int) -> None:
    with pytest.raises(RuntimeError, match="equal size"):
        list(DataLoader(Own(ragged), 4, num_workers=workers))


def test_an_empty_batch_is_an_error_and_an_empty_raw_one_is_empty(path: Path) -> None:
    with pytest.raises(IndexError):
        list(DataLoader(Tagged(path), batch_sampler=[[]]))
    (empty,) = DataLoader(Dataset(path), batch_sampler=[[]])
    assert len(empty) == 0


def test_a_killed_worker_is_an_error(path: Path) -> None:
    loader = DataLoader(Suicidal(path), 4, num_workers=1)
    with pytest.raises(RuntimeError, match="worker"):
        list(loader)


class Suicidal(Tagged):
    def process(self, indices: list[int], data: list[Any]) -> list[Any]:
        os.kill(os.getpid(), signal.SIGKILL)
        return []


def test_64_readers_in_16_workers(path: Path) -> None:
    batches = list(DataLoader(ManyReaders(path), 4, num_workers=16))
    assert [k for keys in batches for k in keys.tolist()] == list(range(N))


class ManyReaders(Dataset):
    def __init__(self, path: Path) -> None:
        self.readers = [fffs.FileReader(path) for _ in range(64)]

    def __len__(self) -> int:
        return N

    def __getitem__(self, indices: list[int]) -> list[int]:
        for reader in self.readers:
            assert [record.tobytes() for record in reader.read(indices)] == [content(k) for k in indices]
        return indices


@pytest.mark.parametrize("to_all", [True, False])
def test_an_interrupt_in_an_epoch_leaves_no_process_behind(path: Path, to_all: bool) -> None:
    program = f"""
        import multiprocessing, sys, time, fffs.torch
        loader = fffs.torch.DataLoader(fffs.torch.Dataset({str(path)!r}), 1, num_workers=2)
        for batch in loader:
            print(*[child.pid for child in multiprocessing.active_children()], flush=True)
            time.sleep(60)
    """
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    assert process.stdout is not None
    workers = [int(pid) for pid in process.stdout.readline().split()]
    assert len(workers) == 2
    (os.killpg if to_all else os.kill)(process.pid, signal.SIGINT)
    assert process.wait(timeout=60) != 0
    process.stdout.close()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


# ---------------------------------------------------------------- set_step


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_set_step_begins_later_in_the_same_order(path: Path, workers: int, persistent: bool) -> None:
    arguments: dict[str, Any] = {"batch_size": 4, "shuffle": True, "num_workers": workers}
    arguments["persistent_workers"] = persistent and workers > 0
    whole = [plain(loader) for loader in [StockLoader(Tagged(path), **arguments, generator=seeded())] for _ in range(3)]
    loader = DataLoader(Tagged(path), **arguments, generator=seeded())
    loader.set_step(5)
    assert len(loader) == 8
    assert plain(loader) == whole[0][5:]
    assert plain(loader) == whole[1][5:]
    loader.set_step(0)
    assert len(loader) == 13
    assert plain(loader) == whole[2]


def test_what_is_passed_over_is_not_read(path: Path) -> None:
    loader = DataLoader(Failing(path), 1)
    loader.set_step(6)
    assert [keys.tolist() for keys, _ in loader] == [[k] for k in range(6, N)]
    loader.set_step(N)
    assert list(loader) == []


@pytest.mark.parametrize("step", [-1, 51, 1.5, "1", None])
def test_set_step_refuses_what_is_no_batch(path: Path, step: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        DataLoader(Tagged(path), 1).set_step(step)


def test_a_loader_that_is_not_skippable_says_so(path: Path) -> None:
    with pytest.raises(ValueError, match="skippable"):
        DataLoader(Tagged(path), 1, skippable=False).set_step(1)


class _OpenedLate(fffs.torch.Dataset):
    """Opens its file in the workers."""

    def __init__(self, path: Path, count: int) -> None:
        self.path, self.count = path, count

    def __len__(self) -> int:
        return self.count


def _open_late(_: int) -> None:
    info: Any = torch.utils.data.get_worker_info()
    info.dataset.reader = fffs.FileReader(info.dataset.path)


@pytest.mark.parametrize("closed", [False, True])
def test_workers_may_open_the_reader(tmp_path: Path, closed: bool) -> None:
    with fffs.FileWriter(tmp_path / "r.ffr", 4) as writer:
        for k in range(4):
            writer.write_one(b"%d" % k)
    data = _OpenedLate(tmp_path / "r.ffr", 4)
    if closed:
        data.reader = fffs.FileReader(data.path)
        data.reader.close()
    loader: Any = fffs.torch.DataLoader(data, batch_size=2, num_workers=1, worker_init_fn=_open_late)
    assert [batch.tolist() for batch in loader] == [[[48], [49]], [[50], [51]]]
