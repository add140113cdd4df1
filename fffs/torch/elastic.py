"""ElasticBatchSampler: batches of an order that does not depend on how many ranks divide it."""

from __future__ import annotations

import contextlib
import hashlib
import operator
import os
from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from torch import distributed
from torch.utils.data import Sampler

from fffs.base.numbers import Int64Array
from fffs.errors import UsageError
from fffs.torch.permutation import Permutation, scattered

_BLOCK: Final = 1 << 14  # indices that are computed at a time: many, because numpy takes long for a few


@dataclass(frozen=True)
class Steps:
    """How the ranks divide the samples that are left of an epoch into steps, in each of which each rank gets a batch.

    Every step takes the next ``batch_size`` samples for each rank. With drop_last, samples that do not fill a step are
    left out. Otherwise they are the last step. If that has too few for all ranks, it shares with the step before, so
    that all ranks take the same number of steps, as long as there is a sample for each.
    """

    samples: int
    batch_size: int
    ranks: int
    drop_last: bool

    @property
    def count(self) -> int:
        """The number of steps."""
        full, rest = divmod(self.samples, self._most)
        return full + (rest > 0 and not self.drop_last)

    @property
    def _most(self) -> int:
        return self.batch_size * self.ranks

    def bounds(self, step: int) -> tuple[int, int]:
        """Return where the samples of a step begin and end."""
        full, rest = divmod(self.samples, self._most)
        shared = not self.drop_last and 0 < rest < self.ranks and full > 0 and self._most + rest >= 2 * self.ranks
        end = self.samples if step >= full else (step + 1) * self._most
        middle = (full - 1) * self._most + (self._most + rest + 1) // 2
        if shared and step == full - 1:
            return step * self._most, middle
        return middle if shared and step == full else step * self._most, end

    def share(self, step: int, rank: int) -> tuple[int, int]:
        """Return where the batch of a rank begins and ends."""
        start, end = self.bounds(step)
        each, more = divmod(end - start, self.ranks)
        return start + rank * each + min(rank, more), start + (rank + 1) * each + min(rank + 1, more)

    def batches(self, rank: int) -> int:
        """Return how many batches a rank gets. It gets none in the last step if that has too few samples."""
        steps = self.count
        return steps - (steps > 0 and operator.eq(*self.share(steps - 1, rank)))


class Taken(NamedTuple):
    """How many samples of an epoch all ranks together have taken. ended: they take no more."""

    epoch: int
    taken: int = 0
    ended: bool = False


class ElasticBatchSampler(Sampler[list[int]]):
    """A ``batch_sampler`` for training on nodes that come and go.

    Each epoch has one order of all samples, which depends only on ``seed`` and the number of the epoch. The ranks take
    their batches from it step by step. So a state says only how much of the order is taken, and any number of ranks,
    with any number of workers and any batch size, goes on with the rest: each remaining sample comes exactly once. The
    order is computed as it is needed; memory and the time to resume do not depend on the number of samples.

    ``state_dict`` and ``load_state_dict`` of an ``fffs.torch.DataLoader`` include the position. Ranks that are at the
    same step have the same state, so that of rank 0 serves all. It has a few hundred bytes. Every epoch has another
    order, also without ``set_epoch``.

    Batches have ``batch_size`` samples, or fewer in the last two steps of an epoch. All ranks take the same number of
    steps, except that if an epoch has fewer samples than there are ranks left for its last step (with batch_size=1, or
    very small data sets), some ranks have one batch less; drop_last=True avoids that.

    Examples:
        >>> sampler = fffs.torch.ElasticBatchSampler(range(10), batch_size=4, seed=1)
        >>> [len(batch) for batch in sampler]
        [4, 4, 2]

    """

    def __init__(
        self,
        dataset: Sized | int,
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        rank: int | None = None,
        ranks: int | None = None,
        locality: bool = False,
    ) -> None:
        """Args:
            dataset: the data set, or the number of its samples.
            batch_size: samples of a batch of one rank.
            shuffle: False: the samples come in the order of their numbers.
            seed: of the order; the same on all ranks.
            drop_last: leave out the samples at the end of an epoch that do not fill the batches of all ranks.
            rank, ranks: the number of this rank, from 0, and how many there are. Default: as in torch.distributed, or
                as torchrun says in the environment, or 0 and 1. A process group that says something else when an
                iterator begins is an error.
            locality: each rank gets mostly the same samples in each epoch, so that the cache of its node has them. Only
                the division of a step among the ranks changes, not the order. Each rank then computes the samples of
                all ranks.

        Raises UsageError: a number is out of range, or a sampler is given as the data set.

        """
        if isinstance(dataset, Sampler):  # as Lightning does, which makes batch samplers anew
            raise UsageError(
                f"ElasticBatchSampler needs the data set, not a {type(dataset).__name__}: it divides the samples among "
                "the ranks by itself; with Lightning, use_distributed_sampler=False is needed"
            )
        self.rank, self.ranks = _ranks(rank, ranks)
        self._told = rank is not None
        self.samples = operator.index(dataset) if not isinstance(dataset, Sized) else len(dataset)
        self.batch_size, self.seed = operator.index(batch_size), operator.index(seed)
        self.shuffle, self.drop_last, self.locality = bool(shuffle), bool(drop_last), bool(locality)
        if self.batch_size < 1 or self.samples < 0:
            raise UsageError(f"a batch of {batch_size} of {self.samples} samples: there must be one sample in a batch")
        self._next = self._current = Taken(0)
        self._runs = False

    def set_epoch(self, epoch: int) -> None:
        """Begin this epoch with the next iterator, unless that resumes it. Without this, the following one begins.

        Raises UsageError: the next iterator resumes another epoch, of which samples are left.
        """
        epoch = operator.index(epoch)
        if epoch < 0:
            raise UsageError(f"there is no epoch {epoch}")
        if epoch == self._next.epoch:
            return
        if self._next.taken and not self._next.ended:  # only a state that was loaded has such a place
            left = self.samples - self._next.taken
            raise UsageError(
                f"epoch {self._next.epoch} is to be resumed, of which {left} samples are left, and not {epoch}: let "
                "the loop begin with the attribute epoch of the sampler"
            )
        self._next = Taken(epoch)

    @property
    def batches(self) -> int:
        """The number of batches of an epoch that is not resumed."""
        return self._division(Taken(0)).batches(self.rank)

    @property
    def start(self) -> Taken:
        """Where the running iterator began, or the next one will."""
        return self._current if self._runs else self._next

    @property
    def next_start(self) -> Taken:
        """Where the next iterator will begin."""
        return self._next

    @contextlib.contextmanager
    def beginning(self) -> Iterator[None]:
        """A block in which an iterator begins. If it raises an exception, none has begun."""
        before = self._next, self._current, self._runs
        try:
            yield
        except BaseException:
            self._next, self._current, self._runs = before
            raise

    @property
    def epoch(self) -> int:
        """The epoch of the running iterator, or of the next one. Workers are ahead: when the last batch was drawn for
        them, this is the next epoch already.
        """
        return self.start.epoch

    def __len__(self) -> int:
        """Return the number of batches of the running iterator, or of the next one."""
        return 0 if self.start.ended else self._division(self.start).batches(self.rank)

    def __iter__(self) -> Iterator[list[int]]:
        """Raises UsageError: torch.distributed says another rank than when this was made, and none was given."""
        found = None if self._told else ranks_of_group()
        if found and found != (self.rank, self.ranks):
            raise UsageError(
                f"it was made for rank {self.rank} of {self.ranks}, but this is rank {found[0]} of {found[1]}: "
                "make the sampler after torch.distributed.init_process_group, or give it rank and ranks"
            )
        return self._epoch()

    def _epoch(self) -> Iterator[list[int]]:
        place = Taken(*self._next)  # a copy, which tells the iterators of one epoch apart
        self._next = Taken(place.epoch + 1)
        self._current, self._runs = place, True
        try:
            if not place.ended:
                yield from self._batches(place)
        finally:
            if self._current is place:  # no other iterator has begun
                self._runs = False

    def _division(self, place: Taken) -> Steps:
        return Steps(self.samples - place.taken, self.batch_size, self.ranks, self.drop_last)

    def _batches(self, place: Taken) -> Iterator[list[int]]:
        division, order = self._division(place), Permutation(self.samples, f"{self.seed} {place.epoch}")
        count, together = division.batches(self.rank), max(1, _BLOCK // (self.batch_size * self.ranks))
        for first in range(0, count, together):
            steps = range(first, min(first + together, count))
            bounds = [division.bounds(step) if self.locality else division.share(step, self.rank) for step in steps]
            positions = place.taken + np.arange(bounds[0][0], bounds[-1][1])
            if not self.locality and self.ranks > 1:
                positions = place.taken + np.concatenate([np.arange(*some) for some in bounds])
            numbers = order.at(positions) if self.shuffle else positions
            ends = np.cumsum([end - start for start, end in bounds])
            for step, batch in zip(steps, np.split(numbers, ends[:-1]), strict=True):
                yield (self._own(batch, division, step) if self.locality else batch).tolist()

    def _own(self, numbers: Int64Array, division: Steps, step: int) -> Int64Array:
        """Return those of a step's samples whose homes are nearest to that of this rank, in their order.

        Every sample has its home on a line, always the same. The ranks share the samples of a step in the order of
        their homes, so each gets those of about the same part of the line every time. Few lie near a boundary.
        """
        start, end = (bound - division.bounds(step)[0] for bound in division.share(step, self.rank))
        key = int.from_bytes(hashlib.blake2b(str(self.seed).encode(), digest_size=8).digest(), "little")
        homes = scattered(numbers.astype(np.uint64) + np.uint64(key))
        return numbers[np.sort(np.argsort(homes, kind="stable")[start:end])]

    # ------------------------------------------------------------ states

    def state_after(self, batches: int | None) -> dict[str, Any]:
        """Return the state after so many batches of the last iterator; None: before the next iterator."""
        place = self._next if batches is None else self._after(batches)
        settings = {"samples": self.samples, "seed": self.seed, "shuffle": self.shuffle}
        return {**settings, **place._asdict()}

    def _after(self, batches: int) -> Taken:
        place, division = self._current, self._division(self._current)
        if place.ended or batches >= division.count:
            return Taken(place.epoch, self.samples, True)
        return Taken(place.epoch, place.taken + (division.bounds(batches - 1)[1] if batches else 0))

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continue with the next iterator where the state was saved. Raises UsageError: it is of another order."""
        place = _taken_of(state)
        for name in ("samples", "seed", "shuffle"):
            if state[name] != getattr(self, name):
                raise UsageError(
                    f"the state is of an order with {name} {state[name]}, but this one has {name} "
                    f"{getattr(self, name)}; resume with the data and settings that the run began with"
                )
        self._next = self._current = place
        self._runs = False


def _ranks(rank: int | None, ranks: int | None) -> tuple[int, int]:
    """Return the rank and the number of ranks, checked."""
    if (rank is None) != (ranks is None):
        raise UsageError("rank and ranks belong together: give both, or neither")
    if rank is None or ranks is None:
        if found := ranks_of_group():
            return found
        rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    rank, ranks = operator.index(rank), operator.index(ranks)
    if not 0 <= rank < ranks:
        raise UsageError(f"there is no rank {rank} of {ranks} ranks")
    return rank, ranks


def ranks_of_group() -> tuple[int, int] | None:
    """Return the rank and the number of ranks in torch.distributed, or None while it has no process group."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return None


def _taken_of(state: Any) -> Taken:
    """Return the position in a state. Raises UsageError: there is none, or it is impossible."""
    kinds = {"samples": int, "seed": int, "shuffle": bool, "epoch": int, "taken": int, "ended": bool}
    if (
        not isinstance(state, Mapping)
        or any(type(state.get(name)) is not kind for name, kind in kinds.items())
        or state["epoch"] < 0
        or not 0 <= state["taken"] <= state["samples"]
    ):
        raise UsageError(f"this is not the state of an ElasticBatchSampler: {repr(state)[:60]}")
    return Taken(state["epoch"], state["taken"], state["ended"])
