"""Resuming is exact or refused: samplers that hide something, other data sets, other settings, what is no state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler
from torch_samples import WARNINGS, Numbers, Tagged, content, plain, write

import fffs
from fffs.errors import UsageError
from fffs.tfrecord import TFRecordWriter
from fffs.torch import ConcatDataset, DataLoader, Dataset, Subset
from fffs.torch.state import PARTS

pytestmark = [pytest.mark.filterwarnings(text) for text in WARNINGS]
N = 53


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("records") / "a.ffr", N)


def begun(loader: DataLoader, at: int = 3, epochs: int = 1) -> tuple[Any, Any]:
    """An iterator in the midst of an epoch, and the state."""
    for _ in range(epochs - 1):
        plain(loader)
    batches = iter(loader)
    for _ in range(at):
        next(batches)
    return batches, loader.state_dict()


# ---------------------------------------------------------------- samplers


class AsItGoes(Sampler[int]):
    """Draws each index when it is asked for it."""

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
    again = resumed.state_dict()  # of what was not begun yet
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
    """Draws from a generator of its own, of which nobody knows."""

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
    """Gives out the very state that it goes on to change."""

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
    """A sampler of batches with a state, around one that has none."""

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
    """Batches of other things than integers, and that can be read once only."""

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


# ---------------------------------------------------------------- other data sets


@pytest.mark.parametrize("kind", [lambda path, n: Tagged(path), lambda path, n: Numbers(n)])
def test_a_data_set_that_grew_is_refused(tmp_path: Path, kind: Callable[[Path, int], Any]) -> None:
    _, state = begun(DataLoader(kind(write(tmp_path / "a.ffr", 53), 53), 4))
    grown = DataLoader(kind(write(tmp_path / "b.ffr", 56), 56), 4)  # as many batches
    with pytest.raises(UsageError, match="samples 53, and this one has samples 56"):
        grown.load_state_dict(state)


def test_a_data_set_of_other_records_is_refused_and_a_copy_is_not(tmp_path: Path, path: Path) -> None:
    _, state = begun(DataLoader(Tagged(path), 4))
    with TFRecordWriter(tmp_path / "b.tfrecord") as writer:
        for k in range(N):
            writer.write_one(content(k))
    with pytest.raises(UsageError, match="files or indices"):
        DataLoader(Tagged(tmp_path / "b.tfrecord"), 4).load_state_dict(state)
    other = path.read_bytes()
    (tmp_path / "c.ffr").write_bytes(other)
    DataLoader(Tagged(tmp_path / "c.ffr"), 4).load_state_dict(state)
    with fffs.FileWriter(tmp_path / "d.ffr", N) as to:
        for _ in range(N):
            to.write_one(bytes(64))
    with pytest.raises(UsageError, match="checksums of records"):
        DataLoader(Tagged(tmp_path / "d.ffr"), 4).load_state_dict(state)


class Two(Dataset):
    """Has its readers in a list."""

    def __init__(self, *paths: Path) -> None:
        self.readers = [fffs.FileReader(path) for path in paths]

    def __len__(self) -> int:
        return N

    def __getitem__(self, indices: list[int]) -> list[Any]:
        return [len(record) for record in self.readers[0].read(indices)]


def test_readers_in_a_list_are_those_of_the_data_set(tmp_path: Path, path: Path) -> None:
    _, state = begun(DataLoader(Two(path), 4))
    with pytest.raises(UsageError, match="files or indices"):
        DataLoader(Two(path, write(tmp_path / "b.ffr", N)), 4).load_state_dict(state)


@pytest.mark.parametrize("kind", [ConcatDataset, torch.utils.data.ConcatDataset])
def test_a_data_set_that_is_there_twice_counts_twice(tmp_path: Path, path: Path, kind: Any) -> None:
    with fffs.FileWriter(tmp_path / "b.ffr", N) as to:
        for _ in range(N):
            to.write_one(bytes(64))
    a, b = Dataset(path), Dataset(tmp_path / "b.ffr")
    _, state = begun(DataLoader(kind([a, a, b]), 4))
    DataLoader(kind([Dataset(path), a, b]), 4).load_state_dict(state)
    for other in ([a, b, b], [a, b, a]):
        with pytest.raises(UsageError, match=r"files or indices|checksums of records"):
            DataLoader(kind(other), 4).load_state_dict(state)


class Plain:
    """A data set of no class of torch's, with something that holds its reader."""

    def __init__(self, held: Any) -> None:
        self.held, self.me = held, self
        self.labels = [("a", k) for k in range(2000)]

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> int:
        return index


HELD: list[Callable[[Any], Any]] = [
    lambda reader: reader,
    lambda reader: {"train": reader, "none": None},
    lambda reader: {1: [None, reader]},
    lambda reader: (3, "name", {"of": [reader]}),
    lambda reader: [("name", reader)] * 3,
    lambda reader: torch.utils.data.Subset(Plain(reader), range(N)),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("held", HELD)
def test_files_are_compared_wherever_data_sets_have_them(
    tmp_path: Path, path: Path, held: Callable[[Any], Any]
) -> None:
    (tmp_path / "copy.ffr").write_bytes(path.read_bytes())
    write(tmp_path / "b.ffr", N, None)
    with (
        fffs.FileReader(path) as reader,
        fffs.FileReader(tmp_path / "copy.ffr") as copy,
        fffs.FileReader(tmp_path / "b.ffr") as other,
    ):
        _, state = begun(DataLoader(Plain(held(reader)), 4))
        DataLoader(Plain(held(copy)), 4).load_state_dict(state)
        with pytest.raises(UsageError, match="files or indices"):
            DataLoader(Plain(held(other)), 4).load_state_dict(state)


def test_data_sets_that_have_each_other_are_compared_in_time(path: Path) -> None:
    with fffs.FileReader(path) as reader:
        crowd = [Plain(reader) for _ in range(12)]  # 12! ways through them
        for one in crowd:
            one.held = [reader, *crowd]
        loader = DataLoader(crowd[0], 4)
        assert loader.state_dict()["fits"]["files or indices"] is not None


@pytest.mark.parametrize("kind", [Subset, torch.utils.data.Subset])
def test_other_indices_of_a_subset_are_refused(path: Path, kind: Any) -> None:
    _, state = begun(DataLoader(kind(Dataset(path), range(20)), 4))
    DataLoader(kind(Dataset(path), list(range(20))), 4).load_state_dict(state)
    with pytest.raises(UsageError, match="files or indices"):
        DataLoader(kind(Dataset(path), range(1, 21)), 4).load_state_dict(state)


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
    ("dataset", *({"sampler": lambda n=n: DistributedSampler(range(n), 2, 0)} for n in (N, N + 1))),  # both take 27
    ("rank", {"sampler": distributed()}, {"sampler": distributed(rank=1)}),
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


class Endless(Sampler[list[int]]):
    """Batches of which nobody knows how many there are."""

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


# ---------------------------------------------------------------- states that are none


class Elsewhere(torch.Tensor):
    """Looks as a tensor on another device does to a generator: that takes none but those of the CPU."""

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
    "fits": [None, 3],
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
