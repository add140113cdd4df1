"""Real ranks, with gloo: together they get each sample once per epoch, also if they are interrupted."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from torch.utils.data.distributed import DistributedSampler
from torch_samples import WARNINGS, Noisy, begun, plain, write

from fffs.errors import UsageError
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


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("at", [0, 3, N // RANKS // BATCH + 1])
@pytest.mark.parametrize("single", [False, True])
def test_each_rank_resumes_from_the_state_of_another(tmp_path: Path, workers: int, at: int, single: bool) -> None:
    """Some programs save the state of rank 0 only. Its batches drawn in advance are not those of other ranks."""
    dataset = Noisy(write(tmp_path / "a.ffr", N))

    def make(rank: int, workers: int = 0, seed: int = 5) -> DataLoader:
        torch.manual_seed(seed)
        sampler = DistributedSampler(dataset, num_replicas=RANKS, rank=rank, seed=9)
        return DataLoader(dataset, None if single else BATCH, sampler=sampler, num_workers=workers)

    def rest(loader: DataLoader, batches: Any) -> list[Any]:
        epochs = [plain(batches)]
        loader.sampler.set_epoch(1)  # type: ignore[attr-defined]
        return [*epochs, plain(loader)]

    run, states = [], []
    for rank in range(RANKS):
        loader = make(rank, workers)
        batches, state = begun(loader, at)
        states.append(state)
        run.append(rest(loader, batches))
    for rank in range(RANKS):
        loader = make(rank, seed=6)
        loader.load_state_dict(states[1 - rank])
        again = loader.state_dict()
        assert rest(loader, iter(loader)) == run[rank]
        for other in range(RANKS):  # states of the resumed run
            loader = make(other, seed=7)
            loader.load_state_dict(again)
            batches, state = begun(loader, 1 if at <= 3 else 0)
            expected = run[other][0][1:] if at <= 3 else run[other][0]
            assert rest(loader, batches) == [expected, run[other][1]]
    assert run[0] != run[1]


def test_between_epochs_a_rank_takes_the_state_of_another(tmp_path: Path) -> None:
    dataset = Noisy(write(tmp_path / "a.ffr", N))
    loaders = [DataLoader(dataset, BATCH, sampler=DistributedSampler(dataset, RANKS, rank)) for rank in range(RANKS)]
    plain(loaders[0])
    loaders[1].load_state_dict(loaders[0].state_dict())
    assert keys(plain(loaders[0])) != keys(plain(loaders[1]))
    with pytest.raises(UsageError, match="num_replicas"):
        DataLoader(dataset, BATCH, sampler=DistributedSampler(dataset, 3, 0)).load_state_dict(loaders[0].state_dict())


class Own(DistributedSampler[Any]):
    """Its order may depend on anything."""


def test_a_rank_with_a_sampler_of_its_own_needs_its_own_state(tmp_path: Path) -> None:
    dataset = Noisy(write(tmp_path / "a.ffr", N))
    _, state = begun(DataLoader(dataset, BATCH, sampler=Own(dataset, RANKS, 0)))
    with pytest.raises(UsageError, match="rank 0"):
        DataLoader(dataset, BATCH, sampler=Own(dataset, RANKS, 1)).load_state_dict(state)


def own_orders(rank: int, folder: Path) -> Any:
    """Each rank shuffles by its own generator. Returns the message for the state of the other rank."""

    def make() -> DataLoader:
        generator = torch.Generator().manual_seed(rank)
        return DataLoader(Noisy(folder / "a.ffr"), BATCH, shuffle=True, generator=generator)

    batches, state = begun(make())
    states: list[Any] = [None] * RANKS
    torch.distributed.all_gather_object(states, state)
    loader = make()
    try:
        loader.load_state_dict(states[1 - rank])
    except UsageError as error:
        loader.load_state_dict(states[rank])
        return [str(error), plain(loader) == plain(batches)]
    return None


def alone(rank: int, folder: Path) -> Any:
    """A state of a run with one process does not fit several. Where the order follows from arguments, it does."""
    dataset = Noisy(folder / "a.ffr")
    loader = DataLoader(dataset, BATCH)
    loader.load_state_dict(torch.load(folder / "plain.pt", weights_only=True))
    assert len(plain(loader)) == N // BATCH - 3
    with pytest.raises(UsageError, match=r"rank 0, but.*|world size 1, but this one has world size 2"):
        DataLoader(dataset, BATCH, shuffle=True).load_state_dict(torch.load(folder / "a.pt", weights_only=True))


def test_ranks_with_orders_of_their_own_refuse_states_of_others(tmp_path: Path) -> None:
    dataset = Noisy(write(tmp_path / "a.ffr", N))
    torch.save(begun(DataLoader(dataset, BATCH))[1], tmp_path / "plain.pt")
    torch.save(begun(DataLoader(dataset, BATCH, shuffle=True))[1], tmp_path / "a.pt")
    hint = "each rank has a state of its own, unless its order comes from a DistributedSampler"
    assert run(own_orders, tmp_path) == [
        [f"the state is of a loader with rank {1 - rank}, but this one has rank {rank}; {hint}", True]
        for rank in range(RANKS)
    ]
    run(alone, tmp_path)


def same_samples(rank: int, folder: Path) -> Any:
    """The ranks of a tensor-parallel group load the same samples."""
    torch.manual_seed(5)
    return [plain(DataLoader(Noisy(folder / "a.ffr"), BATCH, shuffle=True, num_workers=workers)) for workers in (0, 1)]


def test_ranks_with_the_same_samples_draw_the_same_random_numbers(tmp_path: Path) -> None:
    write(tmp_path / "a.ffr", N)
    first, second = run(same_samples, tmp_path)
    assert first == second
    assert first[0] != first[1]  # drawn from the global generator one after the other


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
