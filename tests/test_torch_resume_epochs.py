"""Resuming with samplers that have ``set_epoch``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import RandomSampler, Sampler
from torch.utils.data.distributed import DistributedSampler
from torch_samples import WARNINGS, Noisy, Tagged, plain, write

from fffs.errors import UsageError
from fffs.torch import DataLoader

pytestmark = [pytest.mark.filterwarnings(text) for text in WARNINGS]
N, BATCH, BATCHES = 40, 4, 5


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("records") / "a.ffr", N)


def distributed(**others: Any) -> DistributedSampler[Any]:
    return DistributedSampler(range(N), num_replicas=2, rank=1, **others)


class Told(RandomSampler):
    """Draws from a generator, also after its last index; begins at the number of the epoch."""

    def __init__(self, generator: torch.Generator | None) -> None:
        super().__init__(range(N), num_samples=N // 2, generator=generator)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        yield from ((k + self.epoch) % N for k in super().__iter__())
        torch.rand(1, generator=self.generator)


class Stateful(Told):
    """Its state includes the number of the epoch."""

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch = state["epoch"]


class Unsized(Sampler[list[int]]):
    """Batches whose number is unknown."""

    def __init__(self) -> None:
        self.epoch = 0

    set_epoch = Told.set_epoch

    def __iter__(self) -> Any:
        generator = torch.Generator().manual_seed(self.epoch)
        yield from torch.randperm(N, generator=generator)[: N // 2].view(-1, BATCH).tolist()


MADE: dict[str, Callable[[], dict[str, Any]]] = {
    "distributed": lambda: {"sampler": distributed(), "batch_size": BATCH},
    "in order": lambda: {"sampler": distributed(shuffle=False), "batch_size": BATCH},
    "own generator": lambda: {"sampler": Told(torch.Generator().manual_seed(7)), "batch_size": BATCH},
    "global generator": lambda: {"sampler": Told(None), "batch_size": BATCH},
    "stateful": lambda: {"sampler": Stateful(None), "batch_size": BATCH},
    "unsized": lambda: {"batch_sampler": Unsized()},
}


def make(path: Path, kind: str, seed: int, workers: int, persistent: bool) -> DataLoader:
    torch.manual_seed(seed)
    return DataLoader(Noisy(path), num_workers=workers, persistent_workers=persistent, **MADE[kind]())


def teller(loader: DataLoader) -> Any:
    """Return the object that has ``set_epoch``."""
    return loader.batch_sampler if isinstance(loader.batch_sampler, Unsized) else loader.sampler


def trained(loader: DataLoader, epochs: range, save_at: tuple[int, int] = (-1, -1)) -> tuple[list[Any], Any]:
    """Return the batches of a training loop, and the state after a batch of an epoch."""
    found: list[Any] = []
    state = None
    for epoch in epochs:
        teller(loader).set_epoch(epoch)
        found.append([])
        for batch in loader:
            found[-1] += plain([batch])
            if (epoch, len(found[-1])) == save_at:
                state = loader.state_dict()
    return found, state


WORKERS = [(0, False), (2, False), (2, True)]


@pytest.mark.parametrize(("workers", "persistent"), WORKERS)
@pytest.mark.parametrize("kind", MADE)
def test_a_state_of_an_epochs_last_step_goes_on_with_the_next_epoch_that_is_told(
    path: Path, kind: str, workers: int, persistent: bool
) -> None:
    found, state = trained(loader := make(path, kind, 1, workers, persistent), range(4), save_at=(1, BATCHES))
    assert state["position"] == BATCHES
    ends = [loader.state_dict()[name] for name in ("generators", "global")]
    resumed = make(path, kind, 2, workers, persistent)
    resumed.load_state_dict(state)
    assert trained(resumed, range(2, 4))[0] == found[2:]
    assert plain([resumed.state_dict()[name] for name in ("generators", "global")]) == plain(ends)


@pytest.mark.parametrize(("workers", "persistent"), WORKERS)
@pytest.mark.parametrize("kind", MADE)
def test_a_state_of_an_epochs_last_step_has_no_batches_left_where_no_other_epoch_is_told(
    path: Path, kind: str, workers: int, persistent: bool
) -> None:
    found, state = trained(make(path, kind, 1, workers, persistent), range(4), save_at=(1, BATCHES))
    resumed = make(path, kind, 2, workers, persistent)
    for told in ([], [1]):
        resumed.load_state_dict(state)
        for epoch in told:
            teller(resumed).set_epoch(epoch)
        assert plain(resumed) == []
        assert trained(resumed, range(2, 4))[0] == found[2:]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", ["distributed", "own generator", "unsized"])
def test_an_epoch_that_a_sampler_is_told_after_the_state_was_loaded_is_refused(
    path: Path, kind: str, workers: int
) -> None:
    found, state = trained(make(path, kind, 1, workers, False), range(3), save_at=(1, BATCHES - 1))
    resumed = make(path, kind, 2, workers, False)
    resumed.load_state_dict(state)
    teller(resumed).set_epoch(2)
    before = torch.get_rng_state(), resumed.state_dict()["generators"]
    with pytest.raises(UsageError, match="the sampler gives another order"):
        iter(resumed)
    assert plain([torch.get_rng_state(), resumed.state_dict()["generators"]]) == plain(before)
    teller(resumed).set_epoch(1)
    assert plain(resumed) == found[1][-1:]


class Counting(Told):
    """Sets the next epoch itself when one begins."""

    def __iter__(self) -> Any:
        generator = torch.Generator().manual_seed(self.epoch)
        self.set_epoch(self.epoch + 1)
        return iter(torch.randperm(N, generator=generator)[: N // 2].tolist())


@pytest.mark.parametrize("at", [3, 5])
def test_a_sampler_that_counts_its_epochs_is_told_the_one_that_is_resumed(path: Path, at: int) -> None:
    loader = DataLoader(Tagged(path), 4, sampler=Counting(None))
    plain(loader)
    batches = iter(loader)
    for _ in range(at):
        next(batches)
    state = loader.state_dict()
    after = [plain(batches), plain(loader)]
    resumed = DataLoader(Tagged(path), 4, sampler=Counting(None))
    resumed.load_state_dict(state)
    resumed.load_state_dict(resumed.state_dict())
    assert [plain(resumed), plain(resumed)] == after
