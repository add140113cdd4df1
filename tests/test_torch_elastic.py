"""An order that any number of ranks divides: each sample exactly once an epoch, whoever resumes."""

from __future__ import annotations

import itertools
import math
import os
import pickle
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import record_file
from inside import elastic, permutation
from torch.utils.data import DistributedSampler
from torch_samples import WARNINGS, Noisy, Numbers, Tagged, begun, plain, write

from fffs.errors import UsageError
from fffs.torch import DataLoader, ElasticBatchSampler

pytestmark = [pytest.mark.filterwarnings(text) for text in WARNINGS]
N = 103


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("records") / "a.ffr", N)


# ---------------------------------------------------------------- the permutation


def test_each_number_is_at_one_position() -> None:
    for size in [*range(1, 70), 1000, 1024, 1025, 65_537]:
        numbers = permutation.Permutation(size, f"{size}").at(np.arange(size))
        assert np.array_equal(np.sort(numbers), np.arange(size))


def test_all_orders_of_a_few_samples_are_equally_likely() -> None:
    found = Counter(tuple(permutation.Permutation(4, f"{key}").at(np.arange(4)).tolist()) for key in range(1200))
    expected = 1200 / math.factorial(4)
    assert len(found) == math.factorial(4)
    # 49.7 is the 0.999 quantile of chi squared with 23 degrees of freedom. The keys are fixed: no failure is by chance.
    assert sum((count - expected) ** 2 / expected for count in found.values()) < 49.7


def test_positions_and_numbers_are_not_related() -> None:
    size = 100_000
    numbers = permutation.Permutation(size, "x").at(np.arange(size))
    assert abs(np.corrcoef(np.arange(size), numbers)[0, 1]) < 0.02
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.02
    assert abs(np.mean(np.abs(np.diff(numbers))) / size - 1 / 3) < 0.01


def test_orders_are_the_same_in_every_release() -> None:
    """States of older releases go on with the order that they began with."""
    ten, large = permutation.Permutation(10, "0 0"), permutation.Permutation(10**12, "0 0")
    assert ten.at(np.arange(10)).tolist() == [2, 4, 3, 9, 1, 5, 8, 6, 0, 7]
    assert large.at(np.arange(3)).tolist() == [199_031_932_570, 838_594_239_125, 978_473_622_253]
    sampler = ElasticBatchSampler(20, 2, seed=7, rank=1, ranks=2, locality=True)
    assert [next(iter(sampler)) for _ in range(3)] == [[1, 11], [11, 8], [7, 2]]


# ---------------------------------------------------------------- dividing


def test_ranks_divide_all_samples() -> None:
    numbers = random.Random(3)
    cases = itertools.product(range(13), (1, 2, 3), (1, 2, 3, 5), (False, True))
    some = ((numbers.randrange(3000), numbers.randrange(1, 40), numbers.randrange(1, 20), False) for _ in range(200))
    for samples, batch_size, ranks, drop_last in [*cases, *some]:
        division = elastic.Steps(samples, batch_size, ranks, drop_last)
        shares = [[division.share(step, rank) for rank in range(ranks)] for step in range(division.count)]
        ends = [bound for step in shares for share in step for bound in share]
        kept = samples - samples % (batch_size * ranks) if drop_last else samples
        assert ends == sorted(ends)
        assert ends[::2] == [0, *ends[1:-1:2]][: len(ends) // 2]
        assert (ends[-1] if ends else 0) == kept
        sizes = [[end - start for start, end in step] for step in shares]
        assert all(max(step) <= batch_size and max(step) - min(step) <= 1 for step in sizes)
        counts = [division.batches(rank) for rank in range(ranks)]
        assert counts == [sum(step[rank] > 0 for step in sizes) for rank in range(ranks)]
        if batch_size > 1 and samples >= ranks:
            assert len(set(counts)) == 1  # else a rank would wait for the others forever
        assert drop_last or all(step == [batch_size] * ranks for step in sizes[:-2])


def epoch_of(samplers: list[ElasticBatchSampler], steps: int | None = None) -> list[list[list[int]]]:
    """Return the batches of each rank, of so many steps or all."""
    return [list(itertools.islice(iter(sampler), steps)) for sampler in samplers]


def samplers_of(ranks: int, batch_size: int, state: Any = None, **others: Any) -> list[ElasticBatchSampler]:
    samplers = [ElasticBatchSampler(N, batch_size, seed=5, rank=rank, ranks=ranks, **others) for rank in range(ranks)]
    for sampler in samplers:
        if state:
            sampler.resume(pickle.loads(pickle.dumps(state)))
    return samplers


def flat(batches: list[list[list[int]]]) -> list[int]:
    return [k for rank in batches for batch in rank for k in batch]


@pytest.mark.parametrize("locality", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_each_sample_comes_once_whoever_goes_on(locality: bool, shuffle: bool) -> None:
    numbers = random.Random(locality)
    for _ in range(60):
        state, seen = None, []
        while not state or not state["ended"]:
            ranks, batch_size = numbers.randrange(1, 9), numbers.randrange(1, 6)
            samplers = samplers_of(ranks, batch_size, state, locality=locality, shuffle=shuffle)
            steps = numbers.randrange(len(samplers[0]) + 1)
            seen += flat(epoch_of(samplers, steps))
            states = [sampler.state_after(steps) for sampler in samplers]
            assert all(other == states[0] for other in states)
            state = states[0]
        assert sorted(seen) == list(range(N))
        new = {**state, "epoch": 1, "taken": 0, "ended": False}
        following = flat(epoch_of(samplers_of(3, 4, new, shuffle=shuffle)))
        assert sorted(following) == sorted(seen)
        assert following != seen or not shuffle


def test_drop_last_leaves_out_only_what_does_not_fill_a_step() -> None:
    first = samplers_of(8, 4, drop_last=True)
    seen = flat(epoch_of(first, 2))
    rest = samplers_of(6, 2, first[0].state_after(2), drop_last=True)
    assert [len(sampler) for sampler in rest] == [(N - 64) // 12] * 6
    seen += flat(epoch_of(rest))
    assert len(set(seen)) == len(seen) == 64 + (N - 64) // 12 * 12
    assert rest[0].state_after((N - 64) // 12)["ended"]


def test_the_number_of_ranks_does_not_change_the_order() -> None:
    alone = flat(epoch_of(samplers_of(1, 12)))
    together = epoch_of(samplers_of(3, 4))
    assert [k for step in zip(*together, strict=True) for batch in step for k in batch] == alone


def test_with_locality_a_rank_gets_mostly_the_same_samples() -> None:
    count, ranks = 20_000, 4
    samplers = [ElasticBatchSampler(count, 256, rank=rank, ranks=ranks, locality=True) for rank in range(ranks)]
    first, second = ([{k for batch in sampler for k in batch} for sampler in samplers] for _ in range(2))
    for rank in range(ranks):
        assert len(first[rank] & second[rank]) > 0.9 * count / ranks
    assert sorted(k for some in second for k in some) == list(range(count))
    again = ElasticBatchSampler(count, 256, rank=0, ranks=ranks, locality=True)
    assert next(iter(again)) != sorted(next(iter(samplers[0])))


def test_a_billion_samples_cost_nothing() -> None:
    sampler = ElasticBatchSampler(10**9, 256, rank=3, ranks=8)
    sampler.resume({**sampler.state_after(None), "taken": 999_000_000})
    batches = iter(sampler)
    batch = next(batches)
    assert len(set(batch)) == 256
    assert max(batch) > 500_000_000
    assert len(sampler) == math.ceil(1_000_000 / 2048)


def test_epochs_follow_each_other_or_are_told() -> None:
    sampler, told = ElasticBatchSampler(N, 4, seed=1), ElasticBatchSampler(N, 4, seed=1)
    epochs = [list(sampler) for _ in range(3)]
    assert len({str(epoch) for epoch in epochs}) == 3
    told.set_epoch(2)
    assert list(told) == epochs[2]
    told.set_epoch(0)
    next(iter(told))
    told.set_epoch(1)  # it is the next one anyway
    assert list(told) == epochs[1]


def test_an_abandoned_iterator_does_not_disturb_the_next() -> None:
    sampler = ElasticBatchSampler(N, 4)
    old = iter(sampler)
    next(old)
    new = iter(sampler)
    next(new)
    del old
    assert sampler.epoch == 1
    assert sampler.state_after(1)["epoch"] == 1


@pytest.mark.parametrize(
    "arguments", [{"batch_size": 0}, {"rank": 2, "ranks": 2}, {"rank": -1, "ranks": 2}, {"rank": 0}, {"dataset": -1}]
)
def test_impossible_arguments(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        ElasticBatchSampler(**{"dataset": N, "batch_size": 4, **arguments})


def test_a_sampler_is_no_data_set() -> None:
    """Lightning makes a batch sampler anew with the samples of one rank, which would be divided once more."""
    own = DistributedSampler(range(N), num_replicas=2, rank=0)
    with pytest.raises(UsageError, match=r"not a DistributedSampler: .* use_distributed_sampler=False"):
        ElasticBatchSampler(own, batch_size=4, drop_last=False)


def test_the_rank_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    sampler = ElasticBatchSampler(N, 4)
    assert (sampler.rank, sampler.ranks) == (2, 3)


def test_a_sampler_that_was_made_before_the_process_group_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler, given = ElasticBatchSampler(N, 4), ElasticBatchSampler(N, 4, rank=0, ranks=1)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    with pytest.raises(UsageError, match="made for rank 0 of 1, but this is rank 1 of 2: make the sampler after"):
        iter(sampler)
    assert next(iter(given))


# ---------------------------------------------------------------- loaders


def loaders(path: Path, ranks: int, state: Any = None, workers: int = 0, **others: Any) -> list[DataLoader]:
    found = []
    for rank in range(ranks):
        dataset = Tagged(path)
        sampler = ElasticBatchSampler(dataset, others.pop("batch_size", 4), seed=2, rank=rank, ranks=ranks, **others)
        found.append(DataLoader(dataset, batch_sampler=sampler, num_workers=workers))
        if state is not None:
            found[-1].load_state_dict(state)
    return found


def keys(batches: Any) -> list[int]:
    return [key for batch in batches for key in batch[0]]


@pytest.mark.parametrize(("workers", "other_workers"), [(0, 0), (2, 1)])
def test_a_run_of_four_ranks_goes_on_with_three(path: Path, workers: int, other_workers: int) -> None:
    seen, states = [], []
    for loader in loaders(path, 4, workers=workers):
        batches, state = begun(loader, 3)
        states.append(state)
        seen += keys(islice(loader, 3))
        del batches
    assert states[0] == states[3]
    assert len(pickle.dumps(states[0])) < 400
    second = loaders(path, 3, states[0], other_workers)
    assert [len(loader.batch_sampler) for loader in second] == [5] * 3  # type: ignore[arg-type]
    assert [len(loader) for loader in second] == [9] * 3, "as of every other epoch"
    assert sorted(seen + [k for loader in second for k in keys(plain(loader))]) == list(range(N))
    following = [keys(plain(loader)) for loader in second]
    assert sorted(k for some in following for k in some) == list(range(N))
    whole = loaders(path, 3)
    for loader in whole:
        plain(loader)
    assert [keys(plain(loader)) for loader in whole] == following


def islice(loader: DataLoader, count: int) -> list[Any]:
    """Return the first batches of the epoch that the loader began with."""
    loader.batch_sampler.set_epoch(0)  # type: ignore[union-attr]
    return plain(itertools.islice(iter(loader), count))


def test_states_at_the_end_of_an_epoch(path: Path) -> None:
    [loader] = loaders(path, 1)
    batches, state = begun(loader, len(loader))
    second = loaders(path, 2, state)
    assert [plain(loader) for loader in second] == [[], []]  # all was taken, but the loop had not ended
    assert plain(batches) == []
    third = loaders(path, 2, loader.state_dict())  # now it has
    assert [len(loader) for loader in third] == [13, 13]
    assert [plain(loader) for loader in third] == [plain(loader) for loader in second]


@pytest.mark.parametrize("workers", [0, 1])
def test_set_step_skips_nothing_of_a_resumed_epoch(path: Path, workers: int) -> None:
    def make(state: Any = None) -> DataLoader:
        [loader] = loaders(path, 1, state, workers)
        loader.set_step(20)
        return loader

    batches, state = begun(loader := make(), 2)
    again = make(state)
    assert len(again) == len(loader) == 6
    again.set_step(25)  # of a whole epoch
    assert plain(again) == plain(batches) != []
    again.set_step(20)
    assert plain(again) == plain(loader)
    assert len(again) == len(loader) == 6


def test_a_loop_that_tells_the_epoch_resumes_it(path: Path) -> None:
    [loader] = loaders(path, 1)
    _, state = begun(loader, 5)
    [again] = loaders(path, 1, state)
    again.batch_sampler.set_epoch(0)  # type: ignore[union-attr]
    assert len(plain(again)) == len(loader) - 5 == 21


def test_another_epoch_than_the_one_that_is_resumed_is_refused(path: Path) -> None:
    [loader] = loaders(path, 1)
    loader.batch_sampler.set_epoch(3)  # type: ignore[union-attr]
    batches, state = begun(loader, 5)
    [again] = loaders(path, 1, state)
    for epoch in (0, 4):
        with pytest.raises(UsageError, match="epoch 3 is to be resumed, of which 83 samples are left, and not"):
            again.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]
    assert plain(again) == plain(batches)
    again.batch_sampler.set_epoch(0)  # type: ignore[union-attr]
    assert len(plain(again)) == 26


def test_states_of_resumed_loaders(path: Path) -> None:
    [loader] = loaders(path, 1)
    _, state = begun(loader, 5)
    [again] = loaders(path, 1, state)
    assert again.state_dict() == state
    batches, later = begun(again, 2)
    [last] = loaders(path, 1, later)
    assert plain(last) == plain(batches)


@pytest.mark.parametrize("step", [0, 2])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_that_an_interrupt_prevented_begins_once(
    path: Path, workers: int, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(state: Any = None) -> DataLoader:
        [loader] = loaders(path, 1, state, workers)
        loader.set_step(step)
        return loader

    def interrupted(loader: DataLoader) -> Any:
        """Interrupt an epoch while the first batch is drawn. Returns what has that batch now."""
        has_batches = loader
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(permutation.Permutation, "at", interrupt)
            has_batches = iter(loader)  # fails if there are workers
            next(has_batches)
        return has_batches

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    whole = [plain(loader := make()), plain(loader)]
    states = [None, begun(make(), 3)[1]]
    for state, first in zip(states, [whole[0], whole[0][3:]], strict=True):
        has_batches = interrupted(loader := make(state))
        later = loader.state_dict()
        assert [plain(has_batches), plain(loader)] == [first, whole[1]]
        assert plain(make(later)) == first


@pytest.mark.parametrize("workers", [0, 1])
def test_as_many_ranks_draw_the_random_numbers_of_the_other_run(path: Path, workers: int) -> None:
    def make() -> DataLoader:
        sampler = ElasticBatchSampler(N, 4, seed=2, rank=1, ranks=2)
        sampler.set_epoch(3)
        return DataLoader(Noisy(path), batch_sampler=sampler, num_workers=workers)

    loader = make()
    batches, state = begun(loader, 5)
    rest = [plain(batches), plain(loader)]
    torch.manual_seed(99)
    again = make()
    again.load_state_dict(state)
    assert [plain(again), plain(again)] == rest


def test_other_states_are_refused(path: Path, tmp_path: Path) -> None:
    [loader] = loaders(path, 1)
    _, state = begun(loader, 2)
    ordinary = DataLoader(Tagged(path), 4)
    with pytest.raises(UsageError, match="ElasticBatchSampler, which this one does not have"):
        ordinary.load_state_dict(state)
    with pytest.raises(UsageError, match="not the state of a DataLoader with an ElasticBatchSampler"):
        loader.load_state_dict(ordinary.state_dict())
    with pytest.raises(UsageError, match="reads other files"):
        loaders(write(tmp_path / "b.ffr", N, 32), 1, state)
    with pytest.raises(UsageError, match=r"with seed 2, but this one has seed 3; resume with"):
        sampler = ElasticBatchSampler(N, 4, seed=3)
        DataLoader(Tagged(path), batch_sampler=sampler).load_state_dict(state)
    place = state["elastic"]
    for bad in ({"taken": N + 1}, {"taken": -1}, {"epoch": -1}, {"epoch": True}, {"ended": 0}, {"samples": None}):
        with pytest.raises(UsageError, match="not the state of an ElasticBatchSampler"):
            loaders(path, 1, {**state, "elastic": {**place, **bad}})
    for bad in ({"version": 1}, {"files": 3}, {"elastic": None}):
        with pytest.raises(UsageError):
            loaders(path, 1, {**state, **bad})


def test_other_data_sets_and_loaders_of_torch() -> None:
    numbers = Numbers(N)
    loader: Any = torch.utils.data.DataLoader(numbers, batch_sampler=ElasticBatchSampler(numbers, 10))
    assert sorted(int(k) for batch in loader for k in batch) == list(range(N))
    ours = DataLoader(numbers, batch_sampler=ElasticBatchSampler(numbers, 10))
    _, state = begun(ours, 4)
    again = DataLoader(numbers, batch_sampler=ElasticBatchSampler(numbers, 10))
    again.load_state_dict(state)
    assert sum(len(batch) for batch in again) == N - 40


# ---------------------------------------------------------------- real ranks that die


TRAINING = """
import os, pathlib, sys, torch
from torch import distributed
import fffs.torch

folder, last = pathlib.Path(sys.argv[1]), os.environ["TORCHELASTIC_RESTART_COUNT"] == sys.argv[2]
distributed.init_process_group("gloo")
rank = distributed.get_rank()
dataset = fffs.torch.Dataset(folder / "a.ffr")
sampler = fffs.torch.ElasticBatchSampler(dataset, 4, seed=1)
loader = fffs.torch.DataLoader(dataset, batch_sampler=sampler, num_workers=1)
checkpoint, taken, steps = folder / "checkpoint", [], 0
if checkpoint.exists():
    state = torch.load(checkpoint, weights_only=True)
    taken = state["taken"]
    loader.load_state_dict(state["loader"])
for epoch in range(sampler.epoch, 2):
    for batch in loader:
        together = [None] * distributed.get_world_size()
        distributed.all_gather_object(together, [int.from_bytes(bytes(record), "big") for record in batch])
        steps += 1
        if rank == 1 and not last and steps == 5:
            os.kill(os.getpid(), 9)
        taken.append([epoch, together])
        if rank == 0:
            torch.save({"loader": loader.state_dict(), "taken": taken}, folder / "new")
            os.replace(folder / "new", checkpoint)
        distributed.barrier()
distributed.destroy_process_group()
"""


def torchrun(folder: Path, ranks: int, restarts: int, last: int) -> subprocess.CompletedProcess[str]:
    """Run TRAINING. A rank is killed in each of its starts before the last."""
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")} | {"OMP_NUM_THREADS": "1"}
    # Otherwise, ranks that start again may find the addresses of those before them in the store that they share.
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += [f"--max-restarts={restarts}", str(folder / "train.py"), str(folder), str(last)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=False)


def test_ranks_that_are_killed_and_started_again(tmp_path: Path) -> None:
    """Three ranks, of which one dies, are started again; one dies again, and two go on."""
    (tmp_path / "a.ffr").write_bytes(record_file([k.to_bytes(2, "big") for k in range(N)]))
    (tmp_path / "train.py").write_text(TRAINING)
    assert torchrun(tmp_path, 3, restarts=1, last=2).returncode != 0
    ended = torchrun(tmp_path, 2, restarts=0, last=0)
    assert ended.returncode == 0, ended.stderr
    taken = torch.load(tmp_path / "checkpoint", weights_only=True)["taken"]
    assert {len(ranks) for _, ranks in taken} == {2, 3}
    for epoch in range(2):
        numbers = [k for at, ranks in taken for rank in ranks for k in rank if at == epoch]
        assert sorted(numbers) == list(range(N))
