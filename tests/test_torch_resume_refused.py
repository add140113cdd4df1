"""Resuming is exact or refused: other settings, and invalid states."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from inside import STATE_PARTS as PARTS
from inside import STATE_VERSION as VERSION
from torch.utils.data import (
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler
from torch_samples import WARNINGS, Numbers, Tagged, begun, plain, write

from fffs.errors import UsageError
from fffs.torch import DataLoader

pytestmark = [pytest.mark.filterwarnings(text) for text in WARNINGS]
N = 53


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("records") / "a.ffr", N)


# ---------------------------------------------------------------- other settings


def distributed(**others: Any) -> Callable[[], DistributedSampler[Any]]:
    return lambda: DistributedSampler(range(N), **{"num_replicas": 2, "rank": 0, **others})


SETTINGS: list[tuple[str, Any, Any]] = [
    ("batch_size", {"batch_size": 4}, {"batch_size": 3}),
    ("drop_last", {"drop_last": True}, {"drop_last": False}),
    ("sampler", {"shuffle": True}, {"shuffle": False}),
    ("sampler", {"sampler": lambda: RandomSampler(range(N))}, {"sampler": lambda: WeightedRandomSampler([1.0] * N, N)}),
    ("replacement", *({"sampler": lambda r=r: RandomSampler(range(N), replacement=r)} for r in (False, True))),
    ("generator", {"shuffle": True}, {"shuffle": True, "generator": torch.Generator}),
    ("indices", {"sampler": lambda: [5, 2, 7] * 5}, {"sampler": lambda: [5, 2, 8] * 5}),
    ("indices", *({"sampler": lambda r=r: SubsetRandomSampler(r)} for r in (range(20), range(1, 21)))),
    ("indices", *({"sampler": lambda r=r: WeightedRandomSampler([1.0, 2.0, r], 20)} for r in (1.0, 3.0))),
    ("data_source", *({"sampler": lambda n=n: RandomSampler(range(n), num_samples=40)} for n in (N, N - 1))),
    ("dataset", *({"sampler": lambda n=n: DistributedSampler(range(n), 2, 0)} for n in (N, N + 1))),  # 27 indices
    ("num_replicas", {"sampler": distributed()}, {"sampler": distributed(num_replicas=3)}),
    ("seed", {"sampler": distributed()}, {"sampler": distributed(seed=1)}),
    ("shuffle", {"sampler": distributed()}, {"sampler": distributed(shuffle=False)}),
]


@pytest.mark.parametrize(("name", "then", "now"), SETTINGS)
def test_settings_that_change_the_order_are_refused(path: Path, name: str, then: Any, now: Any) -> None:
    def make(arguments: dict[str, Any]) -> DataLoader:
        made = {key: value() if callable(value) else value for key, value in arguments.items()}
        return DataLoader(Tagged(path), **{"batch_size": 4, **made})

    _, state = begun(make(then))
    make(then).load_state_dict(state)
    with pytest.raises(UsageError, match=f"^the state is of a loader with [A-Za-z.]*{name}"):
        make(now).load_state_dict(state)


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_weights_of_any_kind_are_compared_whole(path: Path, kind: torch.dtype) -> None:
    def make(changed: float) -> DataLoader:
        sampler = WeightedRandomSampler([1.0] * 2000, 20)
        weights = torch.ones(2000, dtype=kind)
        weights[1000] = changed
        sampler.weights = weights.requires_grad_()
        return DataLoader(Numbers(2000), 4, sampler=sampler)

    state = make(1.0).state_dict()
    make(1.0).load_state_dict(state)
    with pytest.raises(UsageError, match="indices or weights"):
        make(2.0).load_state_dict(state)


# ---------------------------------------------------------------- invalid states


class Elsewhere(torch.Tensor):
    """Behaves like a tensor on another device, which generators refuse: they take only those of the CPU."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.to:
            return args[0].as_subclass(torch.Tensor).clone()
        raise TypeError("expected a torch.ByteTensor")


def test_states_that_torch_loaded_to_another_device_are_taken_and_those_without_content_refused(path: Path) -> None:
    generator = torch.Generator().manual_seed(3)
    batches, state = begun(DataLoader(Tagged(path), 4, shuffle=True, generator=generator))
    rest = plain(batches)
    resumed = DataLoader(Tagged(path), 4, shuffle=True, generator=torch.Generator())
    names = ("drawn_from", "generators")
    resumed.load_state_dict(state | {name: [one.as_subclass(Elsewhere) for one in state[name]] for name in names})
    assert plain(resumed) == rest
    with pytest.raises(UsageError, match="this is not what state_dict"):
        resumed.load_state_dict(state | {name: [one.to("meta") for one in state[name]] for name in names})


WRONG: dict[str, list[Any]] = {
    "fits": [None, 3, {"files": 3}, {"files": [[1]]}, {"files": [["x", 1]]}],
    "epoch": [None, "x", -1, 1.0, True],
    "position": [999, -1, "x", True],
    "ahead": [None, 3],
    "ended": [None, 0],
    "digest": [None, -1],
    "seed": [None, -1, 1 << 63, "x"],
    "seeds_each_epoch": [None, 1],
    "seeded": [None, 0, False],
    "samplers": [None, [], [1, 2, 3]],
    "sampler_epochs": [None, [], ["x", "x"]],
    "drawn_from": [None, [], 3, [torch.zeros(3, dtype=torch.uint8)], [torch.zeros(3)]],
    "generators": [None, 3, [torch.zeros(5056, dtype=torch.uint8)[:7]]],
    "global": [3, torch.zeros(3)],
}


def test_each_part_of_a_state_is_looked_at() -> None:
    assert set(WRONG) == set(PARTS)


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_what_no_loader_saves_is_refused_and_changes_nothing(path: Path, name: str, value: Any) -> None:
    batches, state = begun(DataLoader(Tagged(path), 4, shuffle=True))
    rest = plain(batches)
    loader = DataLoader(Tagged(path), 4, shuffle=True)
    loader.load_state_dict(state)
    numbers = torch.get_rng_state()
    for wrong in ({**state, name: value}, {key: part for key, part in state.items() if key != name}):
        with pytest.raises(UsageError) as caught:
            loader.load_state_dict(wrong)
        assert "\n" not in str(caught.value)
    assert torch.equal(torch.get_rng_state(), numbers)
    assert plain(loader) == rest


@pytest.mark.parametrize("state", [None, {}, {"version": VERSION}, 7, []])
def test_what_is_no_state_is_refused(path: Path, state: Any) -> None:
    with pytest.raises(ValueError, match="state_dict"):
        DataLoader(Tagged(path), 4).load_state_dict(state)


def test_a_state_of_another_loader_is_refused(path: Path) -> None:
    state = DataLoader(Tagged(path), 4).state_dict()
    with pytest.raises(ValueError, match="batch_size 4, but this one has batch_size 5"):
        DataLoader(Tagged(path), 5).load_state_dict(state)
    with pytest.raises(ValueError, match="version"):
        DataLoader(Tagged(path), 4).load_state_dict({**state, "version": 1})


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(10))


@pytest.mark.parametrize("stream", [False, True])
def test_a_loader_that_cannot_be_resumed_says_so_when_its_state_is_loaded(path: Path, stream: bool) -> None:
    """Programs save the state of every loader that has one."""
    why = "iterable" if stream else "in_order"
    others: Any = {} if stream else {"num_workers": 1, "in_order": False}
    loader = DataLoader(Stream() if stream else Tagged(path), 4, **others)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    del batches
    with pytest.warns(UserWarning, match=f"begins anew.*{why}") as caught:
        loader.load_state_dict(state)
    assert caught[0].filename == __file__
    assert plain(loader)[0] == ([0, 1, 2, 3] if stream else plain(DataLoader(Tagged(path), 4))[0])
    with pytest.raises(UsageError, match=why):
        loader.load_state_dict(DataLoader(Tagged(path), 4).state_dict())
    with pytest.raises(UsageError, match=why):
        loader.set_step(1)
