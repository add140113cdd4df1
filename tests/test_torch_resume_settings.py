"""Resuming with other settings: the order does not depend on them, or the state is refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_samples import WARNINGS, Noisy, Tagged, begun, plain, write

from fffs.errors import UsageError
from fffs.torch import DataLoader

pytestmark = [pytest.mark.filterwarnings(text) for text in WARNINGS]
N = 12


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("records") / "a.ffr", N)


def settings(workers: int, persistent: bool = False, method: str | None = None) -> dict[str, Any]:
    return {"num_workers": workers, "persistent_workers": persistent, "multiprocessing_context": method}


ALONE, ONE, TWO = settings(0), settings(1), settings(2)
KEPT, THREE_KEPT, SPAWNED = settings(2, True), settings(3, True), settings(1, True, "spawn")
PAIRS = [(ALONE, ALONE), (TWO, TWO), (KEPT, KEPT), (KEPT, ALONE), (ALONE, KEPT), (KEPT, TWO), (ONE, THREE_KEPT)]


def states_of_a_run(loader: DataLoader) -> list[tuple[dict[str, Any], list[Any]]]:
    """Return states at all kinds of points, each with the rest of its epoch and two more epochs."""
    states = [loader.state_dict()]
    epochs = [plain(loader)]
    rests: list[int] = [0]
    batches = iter(loader)
    states.append(loader.state_dict())  # with an iterator, before a batch
    given: list[Any] = []
    for batch in batches:
        given += plain([batch])
        if len(given) == 2:
            states.append(loader.state_dict())
            break
    given += plain([next(batches)])
    states.append(loader.state_dict())  # after all batches, before StopIteration
    assert plain(batches) == []
    states.append(loader.state_dict())
    epochs += [given, plain(loader), plain(loader), plain(loader)]
    rests = [*rests, 0, 2, 3]
    after = [[epochs[0], *epochs[1:3]]] + [[given[rest:], *epochs[2:4]] for rest in rests[1:]] + [epochs[2:5]]
    return list(zip(states, after, strict=True))


@pytest.mark.parametrize("seeded", [True, False])
@pytest.mark.parametrize(("saving", "resuming"), [*PAIRS, (KEPT, SPAWNED)])
def test_all_epochs_after_a_resume_are_the_same_whatever_workers_there_are(
    path: Path, saving: dict[str, Any], resuming: dict[str, Any], seeded: bool
) -> None:
    def make(seed: int, arguments: dict[str, Any]) -> DataLoader:
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(seed) if seeded else None
        return DataLoader(Noisy(path), 4, shuffle=True, generator=generator, **arguments)

    expected = states_of_a_run(make(1, saving))
    used = make(2, resuming)
    for state, after in reversed(expected):  # the first one resumes with new workers from the end of an epoch
        loader = used if resuming is SPAWNED else make(3, resuming)
        loader.load_state_dict(state)
        assert [plain(loader) for _ in range(3)] == after


def test_a_state_is_loaded_although_workers_are_busy_with_another_epoch(path: Path) -> None:
    def make() -> DataLoader:
        generator = torch.Generator().manual_seed(5)
        return DataLoader(Noisy(path), 2, shuffle=True, generator=generator, **KEPT)

    batches = iter(loader := make())
    next(batches)
    state, after = loader.state_dict(), [plain(batches), plain(loader)]
    other = make()
    next(iter(other))
    other.load_state_dict(state)
    assert [plain(other), plain(other)] == after


def test_an_iterator_ends_with_an_error_where_its_persistent_workers_went_on_to_another_epoch(path: Path) -> None:
    loader = DataLoader(Tagged(path), 2, **KEPT)
    outer = iter(loader)
    next(outer)
    inner = iter(loader)
    next(inner)
    state = loader.state_dict()
    with pytest.raises(UsageError, match="another epoch before the end of this one"):
        next(outer)
    assert loader.state_dict() == state
    assert len(plain(inner)) == len(loader) - 1
    outer, _ = begun(loader, len(loader))
    assert len(plain(loader)) == len(loader)
    assert plain(outer) == []  # all of its batches had come


class Dice(torch.utils.data.Dataset[float]):
    """Draws from the generator that torch seeds in each worker."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> float:
        return float(torch.rand(()))


def test_new_workers_in_each_epoch_of_a_run_that_kept_them_draw_other_numbers() -> None:
    plain(kept := DataLoader(Dice(), 4, **KEPT))
    new = DataLoader(Dice(), 4, **ONE)
    new.load_state_dict(kept.state_dict())
    numbers = [number for batch in [*plain(new), *plain(new)] for number in batch]
    assert len(set(numbers)) == 2 * N


class Recorder(DataLoader):
    """Records the generator from which torch draws the seed of workers."""

    drew_from: Any = "nothing"

    def _get_iterator(self) -> Any:
        self.drew_from = self.generator
        return super()._get_iterator()


def test_torch_draws_from_its_own_generator_on_whatever_device_that_is(path: Path) -> None:
    next(iter(loader := Recorder(Noisy(path), 4)))
    assert loader.drew_from is None  # a generator of the loader would be on the CPU


@pytest.mark.parametrize("name", ["sampler", "batch_sampler"])
def test_a_sampler_that_a_subclass_replaced_is_not_passed_over(path: Path, name: str) -> None:
    loader = DataLoader(Noisy(path), batch_size=4 if name == "batch_sampler" else None)
    assert len(list(copy.deepcopy(loader))) == len(loader)
    object.__setattr__(loader, name, [[1, 2], [0]])  # as loaders that repeat their sampler for ever do
    for use in (len, list):
        with pytest.raises(UsageError, match="the sampler was replaced after this DataLoader was made"):
            use(loader)
