"""Resuming with user-defined samplers: exact, or refused if they hide state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, Sampler, SequentialSampler
from torch_samples import WARNINGS, Numbers, Tagged, begun, plain, write

from fffs.errors import UsageError
from fffs.torch import DataLoader

pytestmark = [pytest.mark.filterwarnings(text) for text in WARNINGS]
N = 53


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("records") / "a.ffr", N)


class AsItGoes(Sampler[int]):
    """Draws each index when it is requested."""

    def __init__(self) -> None:
        pass

    def __iter__(self) -> Any:
        return (int(torch.randint(N, ())) for _ in range(24))

    def __len__(self) -> int:
        return 24


@pytest.mark.parametrize(("workers", "other_workers"), [(0, 0), (1, 1), (2, 0), (0, 2)])
@pytest.mark.parametrize("at", [0, 3])
def test_a_sampler_that_draws_as_it_goes_repeats_no_batch(
    path: Path, at: int, workers: int, other_workers: int
) -> None:
    torch.manual_seed(1)
    batches, state = begun(loader := DataLoader(Tagged(path), 4, sampler=AsItGoes(), num_workers=workers), at)
    after = [plain(batches), plain(loader)]
    torch.manual_seed(2)
    resumed = DataLoader(Tagged(path), 4, sampler=AsItGoes(), num_workers=other_workers)
    resumed.load_state_dict(state)
    again = resumed.state_dict()  # of an epoch that has not begun
    assert [plain(resumed), plain(resumed)] == after
    resumed.load_state_dict(again)
    assert plain(resumed) == after[0]


def test_a_sampler_that_shares_its_numbers_with_others_is_refused(path: Path) -> None:
    batches = iter(loader := DataLoader(Tagged(path), 4, sampler=AsItGoes()))
    for _ in range(3):
        next(batches)
        torch.rand(1)
    resumed = DataLoader(Tagged(path), 4, sampler=AsItGoes())
    resumed.load_state_dict(loader.state_dict())
    with pytest.raises(UsageError, match="AsItGoes: the sampler gives another order"):
        iter(resumed)


class Hidden(AsItGoes):
    """Draws from a generator of its own, to which there is no access."""

    def __init__(self) -> None:
        self.numbers = np.random.RandomState(3)

    def __iter__(self) -> Any:
        return iter(self.numbers.permutation(24).tolist())


def test_a_sampler_that_hides_its_state_is_refused_or_warned_of(path: Path) -> None:
    batches, state = begun(loader := DataLoader(Tagged(path), 4, sampler=Hidden(), num_workers=1), epochs=2)
    resumed = DataLoader(Tagged(path), 4, sampler=Hidden())
    resumed.load_state_dict(state)
    with pytest.raises(UsageError, match="Hidden: the sampler gives another order"):
        iter(resumed)
    plain(batches)
    with pytest.warns(UserWarning, match="Hidden: the next epoch is that of the other run only if"):
        resumed.load_state_dict(loader.state_dict())


class Changing(AsItGoes):
    """Returns as its state the very object that it continues to change."""

    def __init__(self) -> None:
        self.state = {"next": 1}

    def __iter__(self) -> Any:
        for _ in range(24):
            self.state["next"] = self.state["next"] * 7 % 101
            yield self.state["next"] % N

    def state_dict(self) -> dict[str, int]:
        return self.state

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.state = state


class Batches(Sampler[list[int]]):
    """A sampler of batches with a state, which wraps a sampler without state."""

    def __init__(self) -> None:
        self.sampler, self.inner = SequentialSampler(range(N)), Changing()

    def __iter__(self) -> Any:
        yield from BatchSampler(self.inner, 4, drop_last=False)

    def __len__(self) -> int:
        return 6

    def state_dict(self) -> Any:
        return self.inner.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.inner.load_state_dict(state)


@pytest.mark.parametrize(
    "arguments", [lambda: {"sampler": Changing(), "batch_size": 4}, lambda: {"batch_sampler": Batches()}]
)
def test_states_of_samplers_are_saved_as_they_were_whoever_has_them(path: Path, arguments: Any) -> None:
    batches, state = begun(loader := DataLoader(Tagged(path), **arguments()), epochs=2)
    after = [plain(batches), plain(loader)]
    resumed = DataLoader(Tagged(path), **arguments())
    resumed.load_state_dict(state)
    assert [plain(resumed), plain(resumed)] == after


class Pairs(AsItGoes):
    """Batches that are not of integers, and can be iterated only once."""

    def __iter__(self) -> Any:
        order = torch.randperm(N).tolist()
        return (iter(order[k : k + 4]) for k in range(0, 24, 4))

    def __len__(self) -> int:
        return 6


def test_batches_that_can_be_read_once_only_resume(path: Path) -> None:
    batches, state = begun(DataLoader(Tagged(path), batch_sampler=Pairs()))
    resumed = DataLoader(Tagged(path), batch_sampler=Pairs())
    resumed.load_state_dict(state)
    assert plain(resumed) == plain(batches) != []


class Endless(Sampler[list[int]]):
    """Batches whose number is unknown."""

    def __iter__(self) -> Any:
        return iter(torch.randperm(N)[:48].view(-1, 4).tolist())


def test_a_batch_sampler_without_a_length_resumes(path: Path) -> None:
    batches, state = begun(loader := DataLoader(Tagged(path), batch_sampler=Endless()))
    resumed = DataLoader(Tagged(path), batch_sampler=Endless())
    resumed.load_state_dict(state)
    assert plain(resumed) == plain(batches) != []
    loader.set_step(10)
    assert len(plain(loader)) == 2
    with pytest.raises(UsageError):
        loader.set_step(-1)


class Reusing(Sampler[Any]):
    """Returns batches in one object that it fills again each time."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __iter__(self) -> Any:
        batch: list[Any] = []
        array = np.zeros(4, np.int64)
        tensor = torch.from_numpy(array)
        for k in range(0, 52, 4):
            batch.clear()
            batch += range(k, k + 4)
            array[:] = batch
            yield {"list": batch, "array": array, "tensor": tensor}[self.kind]

    def __len__(self) -> int:
        return 13


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["list", "array", "tensor"])
@pytest.mark.parametrize("dataset", [Tagged, lambda path: Numbers(N)])
def test_batches_that_a_sampler_gives_in_one_object_are_those_that_it_gave(
    path: Path, dataset: Callable[[Path], Any], kind: str, workers: int
) -> None:
    def make(workers: int) -> DataLoader:
        return DataLoader(dataset(path), batch_sampler=Reusing(kind), num_workers=workers)

    whole = plain(DataLoader(dataset(path), batch_sampler=[list(range(k, k + 4)) for k in range(0, 52, 4)]))
    batches = iter(loader := make(workers))
    assert plain([next(batches)]) == whole[:1]
    state = loader.state_dict()
    assert plain(batches) == whole[1:]
    resumed = make(2 - workers)
    resumed.load_state_dict(state)
    assert plain(resumed) == whole[1:]
