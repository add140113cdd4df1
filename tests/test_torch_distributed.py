"""Real ranks, with gloo: together they get each sample once per epoch, also if they are interrupted."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from torch.utils.data.distributed import DistributedSampler
from torch_samples import WARNINGS, Noisy, plain, write

from fffs.torch import DataLoader

pytestmark = [pytest.mark.filterwarnings(text) for text in WARNINGS]
RANKS, N, BATCH, AT = 2, 60, 4, 3


def make(path: Path, seed: int) -> DataLoader:
    torch.manual_seed(seed)
    dataset = Noisy(path)
    return DataLoader(dataset, BATCH, sampler=DistributedSampler(dataset, seed=9), num_workers=1)


def first_run(rank: int, folder: Path) -> Any:
    """Run two epochs. Returns the batches, and the state of each rank in the middle of the second epoch."""
    loader = make(folder / "a.ffr", seed=rank)
    epochs = [plain(loader)]
    loader.sampler.set_epoch(1)  # type: ignore[attr-defined]
    batches = iter(loader)
    epochs.append(plain(next(batches) for _ in range(AT)))
    torch.save(loader.state_dict(), folder / f"{rank}.pt")
    return [*epochs, plain(batches)]


def second_run(rank: int, folder: Path) -> Any:
    loader = make(folder / "a.ffr", seed=rank + 100)
    loader.load_state_dict(torch.load(folder / f"{rank}.pt", weights_only=True))
    return plain(loader)


def _rank(function: Any, rank: int, folder: Path, name: str) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder / name}", rank=rank, world_size=RANKS, device_id=None
    )
    gathered: list[Any] = [None] * RANKS
    torch.distributed.all_gather_object(gathered, function(rank, folder))
    if rank == 0:
        torch.save(gathered, folder / f"{name}.results")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def run(function: Any, folder: Path) -> Any:
    """Return the result of the function in each rank."""
    name = function.__name__
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=_rank, args=(function, rank, folder, name)) for rank in range(RANKS)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(timeout=120)
        rank.kill()
    assert [rank.exitcode for rank in ranks] == [0] * RANKS
    return torch.load(folder / f"{name}.results", weights_only=True)


def keys(batches: list[Any]) -> list[int]:
    return [key for batch in batches for key in batch[0]]


def test_each_sample_is_seen_once_per_epoch_and_a_resume_holds_across_ranks(tmp_path: Path) -> None:
    write(tmp_path / "a.ffr", N)
    first = run(first_run, tmp_path)
    assert sorted(key for rank in first for key in keys(rank[0])) == list(range(N))
    second = run(second_run, tmp_path)
    assert second == [rank[2] for rank in first]
    together = [key for rank, rest in zip(first, second, strict=True) for key in keys(rank[1]) + keys(rest)]
    assert sorted(together) == list(range(N))
    assert keys(first[0][0]) != keys(first[0][1] + first[0][2])


@pytest.mark.parametrize("workers", [0, 1])
def test_ranks_that_are_seeded_alike_draw_different_random_numbers(tmp_path: Path, workers: int) -> None:
    dataset = Noisy(write(tmp_path / "a.ffr", N))

    def noise(rank: int) -> list[Any]:
        torch.manual_seed(5)
        sampler = DistributedSampler(dataset, num_replicas=RANKS, rank=rank)
        return [batch[1:] for batch in plain(DataLoader(dataset, BATCH, sampler=sampler, num_workers=workers))]

    first, second = noise(0), noise(1)
    assert noise(1) == second
    assert all(one != other for one, other in zip(first, second, strict=True))
