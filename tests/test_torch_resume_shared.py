"""Resuming if other code draws from the loader's generator, or changes the source of the order, during an epoch."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler
from torch_samples import WARNINGS, Noisy, Tagged, begun, plain, write

from fffs.errors import UsageError
from fffs.torch import DataLoader, Dataset, Subset

pytestmark = [pytest.mark.filterwarnings(text) for text in WARNINGS]
N = 40


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("records") / "a.ffr", N)


# ---------------------------------------------------------------- generators


def with_sampler(path: Path, workers: int = 0, **arguments: Any) -> DataLoader:
    sampler = RandomSampler(range(N), generator=torch.Generator().manual_seed(7), **arguments)
    return DataLoader(Tagged(path), 4, sampler=sampler, num_workers=workers)


LAZY: list[dict[str, Any]] = [{"replacement": True, "num_samples": 96}, {"num_samples": 3 * N}]


@pytest.mark.parametrize("arguments", LAZY)
def test_a_sampler_of_torch_that_draws_as_it_goes_is_refused_where_others_drew_between(
    path: Path, arguments: dict[str, Any]
) -> None:
    batches = iter(loader := with_sampler(path, **arguments))
    for _ in range(12):
        next(batches)
        torch.rand(1, generator=loader.sampler.generator)  # type: ignore[attr-defined]
    resumed = with_sampler(path, **arguments)
    resumed.load_state_dict(loader.state_dict())
    with pytest.raises(UsageError, match=r"^RandomSampler: the sampler gives another order") as caught:
        iter(resumed)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("at", [5, 6, 10])
def test_epochs_after_a_resume_are_the_same_where_validation_draws_from_the_same_generator(
    path: Path, workers: int, at: int
) -> None:
    def make() -> list[DataLoader]:
        generator = torch.Generator().manual_seed(7)
        return [
            DataLoader(Tagged(path), 4, shuffle=shuffle, generator=generator, num_workers=workers)
            for shuffle in (True, False)
        ]

    def run(loaders: list[DataLoader], batches: int) -> tuple[list[Any], list[dict[str, Any]]]:
        """Train, and validate after each fifth batch. Returns the batches, and the states after the ``at``-th."""
        training, validation = loaders
        found: list[Any] = []
        states: list[dict[str, Any]] = []
        while len(found) < batches:
            for batch in training:
                found += plain([batch])
                if len(found) % 5 == 0:
                    plain(validation)
                if len(found) == at:
                    states = [loader.state_dict() for loader in loaders]
        return found, states

    expected, states = run(make(), 30)
    resumed = make()
    for loader, state in zip(resumed, states, strict=True):
        loader.load_state_dict(state)
    training, validation = resumed
    found: list[Any] = []
    while len(found) < 30 - at:
        for batch in training:
            found += plain([batch])
            if (at + len(found)) % 5 == 0:
                plain(validation)
    assert found == expected[at:]


class Augmented(Tagged):
    """Augments with numbers from a given generator."""

    generator: torch.Generator

    def process(self, indices: list[int], data: list[Any]) -> list[Any]:
        return [(k, torch.rand(1, generator=self.generator)) for k in indices]


def with_augmentations(path: Path) -> DataLoader:
    data = Augmented(path)
    data.generator = torch.Generator().manual_seed(7)
    return DataLoader(data, 4, shuffle=True, generator=data.generator)


def check(make: Callable[[], DataLoader], at: int) -> None:
    """Compare a run with one that is resumed after some batches."""
    batches, state = begun(loader := make(), at)
    after = [plain(batches), plain(loader)]
    resumed = make()
    resumed.load_state_dict(state)
    assert plain(resumed.state_dict()["generators"]) == plain(state["generators"])
    assert [plain(resumed), plain(resumed)] == after


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("arguments", LAZY)
def test_a_sampler_of_torch_that_draws_as_it_goes_resumes(path: Path, arguments: dict[str, Any], workers: int) -> None:
    check(lambda: with_sampler(path, workers, **arguments), 9)


def test_epochs_after_a_resume_are_the_same_where_samples_draw_from_the_loaders_generator(path: Path) -> None:
    check(lambda: with_augmentations(path), 5)


def test_a_resume_that_is_refused_leaves_generators_where_they_were(path: Path) -> None:
    batches = iter(loader := with_sampler(path, **LAZY[0]))
    for _ in range(12):
        next(batches)
        torch.rand(1, generator=loader.sampler.generator)  # type: ignore[attr-defined]
    resumed = with_sampler(path, **LAZY[0])
    resumed.load_state_dict(loader.state_dict())
    before = resumed.sampler.generator.get_state()  # type: ignore[attr-defined]
    with pytest.raises(UsageError):
        iter(resumed)
    assert torch.equal(resumed.sampler.generator.get_state(), before)  # type: ignore[attr-defined]


# ---------------------------------------------------------------- the source of the order


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def test_weights_that_change_in_an_epoch_are_those_of_the_next(path: Path) -> None:
    def make(weights: torch.Tensor) -> DataLoader:
        return DataLoader(Tagged(path), 4, sampler=WeightedRandomSampler(weights, N, generator=seeded()))  # type: ignore[arg-type]

    old, new = torch.arange(1.0, N + 1), torch.arange(N, 0.0, -1)
    batches = iter(loader := make(old))
    for _ in range(5):
        next(batches)
    loader.sampler.weights = new  # type: ignore[attr-defined]
    state = loader.state_dict()
    after = [plain(batches), plain(loader)]
    with pytest.raises(UsageError, match="indices or weights"):
        make(new).load_state_dict(state)
    resumed = make(old)
    resumed.load_state_dict(state)
    first = iter(resumed)
    next(first)
    resumed.sampler.weights = new  # type: ignore[attr-defined]
    assert [plain(first), plain(resumed)] == [after[0][1:], after[1]]


@pytest.mark.parametrize("kind", [lambda chosen: SubsetRandomSampler(chosen, generator=seeded()), list])
def test_indices_of_a_sampler_that_change_in_an_epoch_are_refused(path: Path, kind: Callable[[Any], Any]) -> None:
    batches = iter(loader := DataLoader(Tagged(path), 4, sampler=kind(list(range(N)))))
    for _ in range(5):
        next(batches)
    indices: Any = getattr(loader.sampler, "indices", loader.sampler)
    indices.reverse()
    for now in (range(N), reversed(range(N))):
        with pytest.raises(UsageError, match="a loader with indices or weights that changed in the epoch"):
            DataLoader(Tagged(path), 4, sampler=kind(list(now))).load_state_dict(loader.state_dict())


@pytest.mark.parametrize("at", [0, 3])
def test_indices_of_a_subset_may_be_others_in_each_epoch(path: Path, at: int) -> None:
    def make(indices: range) -> DataLoader:
        return DataLoader(Subset(Dataset(path), indices), 4)

    loader = make(range(20))
    loader.state_dict()
    plain(loader)
    loader.dataset.indices = range(20, 40)
    batches = iter(loader)
    for _ in range(at):
        next(batches)
    state = loader.state_dict()
    resumed = make(range(20, 40))
    resumed.load_state_dict(state)
    assert plain(resumed) == plain(batches)
    with pytest.raises(UsageError, match="with indices that differ from those of this one"):
        make(range(20)).load_state_dict(state)


def test_indices_of_a_subset_that_change_in_an_epoch_are_refused(path: Path) -> None:
    batches = iter(loader := DataLoader(Subset(Dataset(path), range(20)), 4))
    next(batches)
    loader.dataset.indices = range(20, 40)
    with pytest.raises(UsageError, match="with indices that changed in the epoch"):
        DataLoader(Subset(Dataset(path), range(20)), 4).load_state_dict(loader.state_dict())


# ---------------------------------------------------------------- interrupts


class Interrupted(Tagged):
    """Ctrl-C comes once, while record 9 is processed."""

    pressed = False

    def process(self, indices: list[int], data: list[Any]) -> list[Any]:
        if 9 in indices and not self.pressed:
            self.pressed = True
            raise KeyboardInterrupt
        return super().process(indices, data)


def begin_interrupted(loader: DataLoader, after: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Begin an epoch, and interrupt its sampler after a number of indices. Returns what has the first batch now."""
    draw, has_batches = RandomSampler.__iter__, loader

    def some(sampler: Any) -> Any:
        yield from itertools.islice(draw(sampler), after)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(RandomSampler, "__iter__", some)
        has_batches = iter(loader)  # fails if there are workers
        next(has_batches)
    return has_batches


@pytest.mark.parametrize("seeded", [False, True])
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_an_epoch_that_an_interrupt_prevented_begins_once(
    path: Path, workers: int, persistent: bool, seeded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(seed: int, workers: int = 0, persistent: bool = False) -> DataLoader:
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(seed) if seeded else None
        return DataLoader(Noisy(path), 4, True, None, None, workers, persistent_workers=persistent, generator=generator)

    loader = make(1, 2 if persistent else 0, persistent)
    whole = [plain(loader), plain(loader)]
    loader = make(1, workers, persistent)
    for after in (2, 14) if workers else (2,):  # when the first batch is drawn, and when others are
        has_batches = begin_interrupted(loader, after, monkeypatch)
    state = loader.state_dict()
    assert [plain(has_batches), plain(loader)] == whole
    loader.load_state_dict(state)
    assert [plain(loader), plain(loader)] == whole
    _, state = begun(make(1, 1 if persistent else 0, persistent))
    loader = make(2, workers, persistent)
    loader.load_state_dict(state)
    for after in (2, 26) if workers else (2,):
        has_batches = begin_interrupted(loader, after, monkeypatch)
    state = loader.state_dict()
    assert [plain(has_batches), plain(loader)] == [whole[0][3:], whole[1]]
    loader.load_state_dict(state)
    assert [plain(loader), plain(loader)] == [whole[0][3:], whole[1]]


def test_after_an_interrupt_in_a_batch_states_count_what_the_iterator_passed(path: Path) -> None:
    batches = iter(loader := DataLoader(Interrupted(path), 4))
    whole = plain(DataLoader(Tagged(path), 4))
    assert plain([next(batches), next(batches)]) == whole[:2]
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    resumed = DataLoader(Tagged(path), 4)
    resumed.load_state_dict(loader.state_dict())
    assert plain(resumed) == whole[2:]  # batches that were not delivered are not lost
    assert plain([next(batches)]) == whole[3:4]
    resumed.load_state_dict(loader.state_dict())
    assert plain(resumed) == plain(batches) == whole[4:]
