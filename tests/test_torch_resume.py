"""Resuming: the batches after a resume are those of the uninterrupted run."""

from __future__ import annotations

import copy
import io
import itertools
import os
import pickle
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler
from torch_samples import WARNINGS, Failing, Noisy, Own, Tagged, begun, mixed, plain, write

import fffs.torch
from fffs.torch import DataLoader, Dataset

pytestmark = [pytest.mark.filterwarnings(text) for text in WARNINGS]
N = 40
AT = 3  # batches before the state is taken


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("records") / "a.ffr", N)


def saved(state: Any) -> Any:
    """Return the state as loaded from a checkpoint that may contain only tensors and plain values."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def interrupted(loader: DataLoader, at: int = AT, epochs: int = 2) -> tuple[list[Any], Any, list[Any]]:
    """Return ``at`` batches of the last epoch, the state after them, and the rest with two more epochs."""
    for _ in range(epochs - 1):
        plain(loader)
    batches = iter(loader)
    before = plain(next(batches) for _ in range(at))
    state = saved(loader.state_dict())
    return before, state, [plain(batches), plain(loader), plain(loader)]


def check(make: Any, workers: int, other_workers: int, **others: Any) -> None:
    """Compare an interrupted run with one that resumes in a process with other states of the generators."""
    torch.manual_seed(1)
    before, state, after = interrupted(make(num_workers=workers, **others))
    torch.manual_seed(2)
    resumed = make(num_workers=other_workers, **others)
    resumed.load_state_dict(state)
    assert [plain(resumed) for _ in range(3)] == after
    assert len(before) == AT
    assert before[0] not in after[0]


@pytest.mark.parametrize(("workers", "other_workers"), [(0, 0), (0, 2), (2, 0), (2, 3)])
@pytest.mark.parametrize("seeded", [True, False])
def test_batches_after_a_resume_are_those_of_the_other_run(
    path: Path, workers: int, other_workers: int, seeded: bool
) -> None:
    def make(**arguments: Any) -> DataLoader:
        generator = torch.Generator().manual_seed(torch.initial_seed()) if seeded else None
        return DataLoader(Noisy(path), 4, shuffle=True, generator=generator, **arguments)

    check(make, workers, other_workers)


@pytest.mark.parametrize(("workers", "other_workers"), [(0, 0), (0, 1), (1, 0)])
def test_random_numbers_of_a_collate_fn_are_resumed(path: Path, workers: int, other_workers: int) -> None:
    def make(**arguments: Any) -> DataLoader:
        return DataLoader(Noisy(path), 4, shuffle=True, collate_fn=mixed, **arguments)

    check(make, workers, other_workers)


class FromItems(Noisy):
    """Makes batches as data sets for torch do."""

    def __getitems__(self, indices: Any) -> Any:
        return [(*self[[index]][0], torch.rand(1)) for index in indices]


class OtherIndices(Noisy):
    def __getitems__(self, indices: Any) -> Any:
        return super().__getitems__([N - 1 - index for index in indices])


class Passed(Noisy):
    def __getitems__(self, indices: Any) -> Any:
        first = torch.rand(2)
        samples = super().__getitems__(indices)
        assert not torch.equal(samples[0][1], first)
        return [(*sample, first) for sample in samples]


class Copied(Noisy):
    """Copies of the indices, in the data set, in a queue, or in the training loop, change no random numbers."""

    def __getitems__(self, indices: Any) -> Any:
        first = torch.rand(1)
        for copied in (copy.copy(indices), copy.deepcopy(indices), pickle.loads(pickle.dumps(indices))):
            assert list(copied) == list(indices)
        second = torch.rand(1)
        assert not torch.equal(first, second)
        return [(index, first, second, indices) for index in indices]


@pytest.mark.parametrize("workers", [0, 1])
def test_indices_that_a_data_set_returns_seed_nothing(path: Path, workers: int) -> None:
    loader = DataLoader(Copied(path), 4, num_workers=workers, collate_fn=list)
    torch.manual_seed(5)
    expected = torch.rand(1)
    batches = iter(loader)
    torch.manual_seed(5)
    samples = next(batches)
    copy.deepcopy(samples)
    assert torch.equal(torch.rand(1), expected)


class NoBatches(Noisy):
    __getitems__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(("workers", "other_workers"), [(0, 0), (0, 2), (2, 0)])
@pytest.mark.parametrize("kind", [FromItems, OtherIndices, Passed, NoBatches])
def test_random_numbers_of_own_batches_are_resumed(path: Path, kind: Any, workers: int, other_workers: int) -> None:
    def make(**arguments: Any) -> DataLoader:
        return DataLoader(kind(path), 4, shuffle=True, collate_fn=mixed, **arguments)

    check(make, workers, other_workers)
    before = torch.get_rng_state()
    list(DataLoader(kind(path), 4, generator=torch.Generator()))
    assert torch.equal(torch.get_rng_state(), before)


class FailsAtNine(Dataset):
    """Fails for one record."""

    def process(self, indices: list[int], data: list[Any]) -> list[Any]:
        if 9 in indices:
            raise ValueError("number 9")
        return super().process(indices, data)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_that_failed_is_not_given_twice(path: Path, workers: int) -> None:
    batches = iter(loader := DataLoader(FailsAtNine(path), 4, num_workers=workers))
    for k in range(5):
        try:
            next(batches)
        except ValueError as error:
            assert k == 2 and "number 9" in str(error)
    resumed = DataLoader(FailsAtNine(path), 4, num_workers=workers)
    resumed.load_state_dict(saved(loader.state_dict()))
    assert plain(resumed) == plain(batches) != []


class TwoArgumentsError(Exception):
    def __init__(self, one: str, other: str) -> None:
        super().__init__(one, other)


class MessageError(Exception):
    message = "what failed"

    def __init__(self, message: str) -> None:
        self.message = message

    def __str__(self) -> str:
        return "failed"


ERRORS = {"key": KeyError(3), "two": TwoArgumentsError("a", "b"), "message": MessageError("a"), "os": OSError(5, "no")}


class Faulty(Tagged):
    """The second batch fails with one of the errors."""

    def __init__(self, path: Path, error: str) -> None:
        super().__init__(path)
        self.error = error

    def process(self, indices: list[int], data: list[Any]) -> list[Any]:
        if 5 in indices:
            raise ERRORS[self.error]
        return super().process(indices, data)


@pytest.mark.parametrize("error", ERRORS)
def test_a_batch_that_failed_in_a_worker_is_over_whatever_the_error(path: Path, error: str) -> None:
    loader = DataLoader(Faulty(path, error), 4, num_workers=1)
    batches, _ = begun(loader, 1)
    with pytest.raises(Exception, match=r"failed|Caught"):
        next(batches)
    assert loader.state_dict()["position"] == 2
    assert plain(batches)[0][0] == [8, 9, 10, 11]


class UnprintableError(Exception):
    """An error like those of libraries that keep a number and make its text when it is asked for."""

    def __str__(self) -> str:
        return f"error {self.args[0]:d}"  # torch makes the error again, with a text


class UnprintableData(Dataset):
    def process(self, indices: list[int], data: list[Any]) -> Any:
        if 5 in indices:
            raise UnprintableError(7)
        return indices


def test_an_error_is_counted_whatever_its_text(path: Path) -> None:
    loader = DataLoader(UnprintableData(path), 4, num_workers=1)
    batches = iter(loader)
    next(batches)
    with pytest.raises(UnprintableError):
        next(batches)
    assert loader.state_dict()["position"] == 2
    assert next(batches).tolist() == [8, 9, 10, 11]


@pytest.mark.parametrize(
    "error", [ConnectionResetError(104, "reset"), RuntimeError("DataLoader worker (pid 3) is killed"), EOFError()]
)
def test_a_batch_that_did_not_arrive_is_not_over(path: Path, error: Exception) -> None:
    """Torch's iterator may fail in any way when a worker is killed."""

    loader = DataLoader(Tagged(path), 4, num_workers=1)
    batches, before = begun(loader, 2)

    class Broken:
        _rcvd_idx = _send_idx = 2  # what torch's iterator has received
        _task_info: tuple[()] = ()
        _sampler_iter = batches._draws

        def __next__(self) -> Any:
            raise error

    batches._iterator = Broken()
    with pytest.raises(type(error)):
        next(batches)
    assert loader.state_dict()["position"] == before["position"] == 2


def test_persistent_workers_resume_and_are_resumed(path: Path) -> None:
    def make(**arguments: Any) -> DataLoader:
        return DataLoader(Noisy(path), 4, shuffle=True, persistent_workers=True, **arguments)

    check(make, 2, 1)


class KilledOnce(Noisy):
    """A worker is killed at record 21, unless the file is there, which it makes."""

    def __init__(self, path: Path, mark: Path) -> None:
        super().__init__(path)
        self.mark = mark

    def process(self, indices: list[int], data: list[Any]) -> Any:
        if 21 in indices and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().process(indices, data)


def test_a_loader_whose_persistent_worker_was_killed_resumes(path: Path, tmp_path: Path) -> None:
    def make() -> DataLoader:
        torch.manual_seed(1)
        return DataLoader(KilledOnce(path, mark), 4, shuffle=True, num_workers=2, persistent_workers=True)

    mark = tmp_path / "killed"
    mark.touch()
    other = make()
    epochs = [plain(other) for _ in range(3)]
    loader, batches = make(), []
    assert plain(loader) == epochs[0]
    mark.unlink()
    with pytest.raises(RuntimeError, match="worker"):
        for batch in loader:
            batches += plain([batch])
    loader.load_state_dict(saved(loader.state_dict()))
    assert batches + plain(loader) == epochs[1]
    assert plain(loader) == epochs[2]


def test_an_interrupt_while_persistent_workers_begin_an_epoch(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their answers to the interrupted attempt are not taken for those to the next one."""

    def make() -> DataLoader:
        torch.manual_seed(1)
        return DataLoader(Tagged(path), 4, shuffle=True, num_workers=2, persistent_workers=True)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    other = make()
    epochs = [plain(other) for _ in range(3)]
    loader = make()
    assert plain(loader) == epochs[0]
    state = saved(loader.state_dict())
    with monkeypatch.context() as patched:
        patched.setattr(type(loader._iterator), "_get_data", interrupt)
        with pytest.raises(KeyboardInterrupt):
            iter(loader)
    loader.load_state_dict(state)
    assert [plain(loader), plain(loader)] == epochs[1:]


SAMPLERS = {
    "sequential": lambda: SequentialSampler(range(N)),
    "random": lambda: RandomSampler(range(N)),
    "own generator": lambda: RandomSampler(range(N), generator=torch.Generator().manual_seed(torch.initial_seed())),
    "replacement": lambda: RandomSampler(range(N), replacement=True, num_samples=100),
    "weighted": lambda: WeightedRandomSampler([1.0] * N, N),
    "subset": lambda: SubsetRandomSampler(range(0, N, 2)),
    "distributed": lambda: DistributedSampler(range(N), num_replicas=2, rank=1),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_of_torch_resumes(path: Path, name: str) -> None:
    check(lambda **others: DataLoader(Noisy(path), 3, sampler=SAMPLERS[name](), **others), 0, 1)


def test_batch_samplers_resume(path: Path) -> None:
    def make(**arguments: Any) -> DataLoader:
        batches = BatchSampler(RandomSampler(range(N)), 7, drop_last=True)
        return DataLoader(Own(path), batch_sampler=batches, **arguments)

    check(make, 0, 1)


def test_single_samples_resume(path: Path) -> None:
    check(lambda **others: DataLoader(Noisy(path), batch_size=None, shuffle=True, **others), 0, 1)


class Lottery(torch.utils.data.Sampler[int]):
    """A sampler with a state that changes during the iteration."""

    def __init__(self) -> None:
        self.number = 1

    def __iter__(self) -> Any:
        for _ in range(N):
            self.number = self.number * 7 % 101
            yield self.number % N

    def __len__(self) -> int:
        return N

    def state_dict(self) -> dict[str, int]:
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.number = state["number"]


def test_samplers_with_a_state_resume(path: Path) -> None:
    check(lambda **others: DataLoader(Tagged(path), 4, sampler=Lottery(), **others), 0, 2)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("at", [0, 1, 10])
def test_a_state_can_be_taken_at_every_point(path: Path, at: int, workers: int) -> None:
    def make() -> DataLoader:
        generator = torch.Generator().manual_seed(5)
        return DataLoader(Noisy(path), 4, shuffle=True, generator=generator, num_workers=workers)

    _, state, after = interrupted(make(), at)
    resumed = make()
    resumed.load_state_dict(state)
    found = [plain(resumed) for _ in range(3)]
    assert found == after
    assert len(found[0]) == 10 - at


def test_between_epochs_the_next_one_is_a_new_one(path: Path) -> None:
    def make() -> DataLoader:
        return DataLoader(Noisy(path), 4, shuffle=True, generator=torch.Generator().manual_seed(5))

    first = make()
    fresh = saved(first.state_dict())
    epochs = [plain(first)]
    state = saved(first.state_dict())
    epochs.append(plain(first))
    resumed = make()
    resumed.load_state_dict(state)
    assert plain(resumed) == epochs[1]
    resumed.load_state_dict(fresh)
    assert [plain(resumed), plain(resumed)] == epochs


def test_a_state_of_a_resumed_run_resumes_again(path: Path) -> None:
    def make() -> DataLoader:
        return DataLoader(Noisy(path), 4, shuffle=True, num_workers=1)

    _, state, after = interrupted(make(), 2)
    second = make()
    second.load_state_dict(state)
    assert plain([second.state_dict()["position"]]) == [2]
    batches = iter(second)
    assert plain([next(batches), next(batches)]) == after[0][:2]
    third = make()
    third.load_state_dict(saved(second.state_dict()))
    assert plain(third) == after[0][2:]


def test_resuming_takes_nothing_from_the_global_generator(path: Path) -> None:
    loader = DataLoader(Tagged(path), 4, shuffle=True, num_workers=1)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    expected = torch.rand(3)  # drawn by a training loop in the uninterrupted run
    resumed = DataLoader(Tagged(path), 4, shuffle=True, num_workers=1)
    torch.manual_seed(99)
    resumed.load_state_dict(state)
    next(iter(resumed))
    assert torch.equal(torch.rand(3), expected)


def test_without_a_need_the_global_generator_is_left_alone(path: Path) -> None:
    def make() -> DataLoader:
        return DataLoader(Tagged(path), 4, sampler=DistributedSampler(range(N), 2, 0))

    loader = make()
    next(iter(loader))
    state = loader.state_dict()
    torch.manual_seed(4)
    resumed = make()
    resumed.load_state_dict(state)
    next(iter(resumed))
    found = torch.rand(2)
    torch.manual_seed(4)
    assert torch.equal(found, torch.rand(2))


def test_what_was_done_is_not_read_again(path: Path) -> None:
    loader = DataLoader(Tagged(path), 1)
    _, state = begun(loader, 6)
    resumed = DataLoader(Failing(path), 1)  # cannot read record 5
    resumed.load_state_dict(state)
    assert [keys.tolist() for keys, _ in resumed] == [[k] for k in range(6, N)]


def test_set_step_and_states_count_the_same_batches(path: Path) -> None:
    loader = DataLoader(Tagged(path), 4)
    whole = plain(loader)
    loader.set_step(2)
    batches = iter(loader)
    assert plain([next(batches)]) == whole[2:3]
    resumed = DataLoader(Tagged(path), 4)
    resumed.load_state_dict(loader.state_dict())
    assert plain(resumed) == whole[3:]
    assert plain(resumed) == whole


def test_the_epoch_of_a_distributed_sampler_is_restored(path: Path) -> None:
    def make() -> DataLoader:
        return DataLoader(Tagged(path), 4, sampler=DistributedSampler(range(N), 2, 0))

    loader = make()
    loader.sampler.set_epoch(3)  # type: ignore[attr-defined]
    batches = iter(loader)
    next(batches)
    resumed = make()
    resumed.load_state_dict(saved(loader.state_dict()))
    assert plain(resumed) == plain(batches)


@pytest.mark.parametrize("style", [Tagged, Own, Dataset])
def test_torchdatas_protocol_is_all_that_is_needed(path: Path, style: Any) -> None:
    loader = DataLoader(style(path), 4, shuffle=True)
    for name in ("state_dict", "load_state_dict"):
        assert callable(getattr(loader, name))
    assert isinstance(loader.state_dict(), dict)
    assert fffs.torch.DataLoader.__mro__[1] is torch.utils.data.DataLoader


@pytest.mark.parametrize("sampler", [torch.randperm(8), np.arange(8)[::-1]])
def test_samplers_of_tensors_give_single_samples(path: Path, sampler: Any) -> None:
    loader = DataLoader(Dataset(path), batch_size=None, sampler=sampler)
    with fffs.FileReader(path) as reader:
        assert plain(loader) == [record.tolist() for record in reader.read([int(k) for k in sampler])]


def test_a_loader_can_be_pickled_also_after_an_epoch(path: Path) -> None:
    loader = DataLoader(Dataset(path), 4)
    first = plain(loader)
    assert plain(pickle.loads(pickle.dumps(loader))) == plain(loader) == first


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (1, False), (1, True)])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_state_before_the_first_batch_settles_the_random_numbers_of_samples(
    path: Path, workers: int, persistent: bool, shuffle: bool
) -> None:
    def make(seed: int) -> DataLoader:
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(7) if shuffle else None
        return DataLoader(
            Noisy(path), 8, shuffle, num_workers=workers, persistent_workers=persistent, generator=generator
        )

    untouched = plain(make(1))
    loader = make(1)
    state = saved(loader.state_dict())
    if not shuffle:
        torch.rand(3)  # as a model does that is made between the state and the first batch
    whole = [plain(loader) for _ in range(2)]
    assert whole[0] == untouched
    resumed = make(2)
    resumed.load_state_dict(state)
    assert [plain(resumed) for _ in range(2)] == whole


def test_what_draws_from_torchs_generator_between_two_epochs_changes_an_order_that_comes_from_it(path: Path) -> None:
    def orders(generator: torch.Generator | None) -> tuple[list[Any], list[Any]]:
        torch.manual_seed(1)
        loader = DataLoader(Tagged(path), 8, shuffle=True, generator=generator)
        state = saved(loader.state_dict())
        torch.rand(3)
        first = plain(loader)
        loader.load_state_dict(state)
        return first, plain(loader)

    first, again = orders(torch.Generator().manual_seed(1))
    assert first == again
    first, again = orders(None)
    assert first != again
    torch.manual_seed(1)
    torch.rand(3)
    assert plain(torch.utils.data.DataLoader(Tagged(path), 8, shuffle=True)) == first


def test_a_state_between_epochs_of_an_earlier_release(path: Path) -> None:
    """It has no generators of the order, of which there is none yet."""
    loader = DataLoader(Tagged(path), 4, shuffle=True)
    plain(loader)
    state = loader.state_dict()
    wanted = plain(loader)
    resumed = DataLoader(Tagged(path), 4, shuffle=True)
    resumed.load_state_dict({**state, "drawn_from": None})
    assert plain(resumed) == wanted


@pytest.mark.filterwarnings("ignore")  # that there is one process, for example
@pytest.mark.parametrize("at", [0, AT])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_distributed_checkpoint_has_the_same_parts_at_any_time(
    path: Path, tmp_path: Path, weighted: bool, at: int
) -> None:
    """It is loaded into the state of a loader, whose tensors must be those of the checkpoint by name and size."""

    def make() -> DataLoader:
        sampler = WeightedRandomSampler(range(1, N + 1), N) if weighted else None
        return DataLoader(Tagged(path), 4, shuffle=not weighted, sampler=sampler)

    loader = make()
    batches = iter(loader)
    plain(next(batches) for _ in range(at))
    if at == 0:
        plain(batches)
    torch.distributed.checkpoint.save({"loader": loader}, checkpoint_id=tmp_path / "saved")
    wanted = [plain(batches)] if at else []
    wanted.append(plain(loader))
    for other in (0, 2):
        resumed = make()
        plain(itertools.islice(resumed, other))
        torch.distributed.checkpoint.load({"loader": resumed}, checkpoint_id=tmp_path / "saved")
        assert [plain(resumed) for _ in wanted] == wanted
