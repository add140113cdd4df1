"""Order: which batches a loader asks for, from which one on, and what it takes to ask for the same ones again.

torch draws the order of an epoch from a generator when the first batch is asked for. The state that the generator has
right then, and how many batches the caller got, is all that a resumed run needs: it draws the same order and passes
over what is done, without reading any of it.
"""

from __future__ import annotations

import enum
import hashlib
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from fffs.errors import UsageError
from fffs.torch.batch import Batch

VERSION = 2
NO_GENERATOR = (SequentialSampler, DistributedSampler)  # their order comes from no generator's state


class Kind(enum.Enum):
    """What a data set is asked with."""

    PLAIN = enum.auto()  # what the sampler gives, for any data set
    SEEDED = enum.auto()  # a Batch, for ours
    JOINED = enum.auto()  # a Batch that Collate takes unread


@dataclass
class Epoch:
    """One epoch: how it began, and how far it is."""

    number: int
    position: int = 0  # batches passed over, and those the caller got
    begun: bool = False
    done: bool = False
    drawn_from: torch.Tensor | None = None  # the generator's state right before the order was drawn
    sampler: Any = None  # the sampler's state then, where it has one


class Order:
    """What a loader has in place of its sampler: iterated, it gives what to load, seeds included.

    Not thread-safe, as loaders are not.
    """

    def __init__(
        self,
        sampler: Any,
        generator: torch.Generator | None,
        kind: Kind,
        look_ahead: Callable[[Iterator[Any], int], Iterator[Any]] | None = None,
        persistent: bool = False,
    ) -> None:
        """sampler: of batches, or of indices. generator: the loader's. kind: what is to be given. look_ahead: gives
        the same batches again, of which there are so many, after it has done what it wants with those to come.
        persistent: the workers of the first epoch are those of all.
        """
        self.sampler, self.kind, self.look_ahead = sampler, kind, look_ahead
        self.step = 0
        self.epoch = Epoch(0)
        # torch draws a seed for its workers when it makes an iterator, from the generator that the order comes from:
        # for each epoch, or with persistent workers for the first alone. A resumed run keeps to what its first did.
        self._seeds_each_epoch, self._seeded = not persistent, False
        self._latest: weakref.ref[Draws] | None = None  # of the last iterator
        self._seed: int | None = None  # of the random numbers that samples use
        self._resumed: Epoch | None = None
        self._leaf = sampler
        while hasattr(self._leaf, "sampler"):
            self._leaf = self._leaf.sampler
        self._draws_at_random = not isinstance(self._leaf, NO_GENERATOR)
        of_sampler = getattr(self._leaf, "generator", None)
        self._generator = of_sampler if isinstance(of_sampler, torch.Generator) else None
        self._of_loader = generator

    def __len__(self) -> int:
        return max(len(self.sampler) - self.step, 0)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_latest": None}  # a copy has no iterators

    def __iter__(self) -> Iterator[Any]:
        draws = Draws(self)
        self._latest = weakref.ref(draws)
        return draws

    # ------------------------------------------------------------ epochs

    def workers_seed(self) -> torch.Generator:
        """What torch is to draw the seed of workers from. The loader's own generator moves here, and only when it would
        in the run that was not interrupted.
        """
        copy = torch.Generator()
        copy.set_state(_get_state(self._of_loader))
        if not self.resuming and (self._seeds_each_epoch or not self._seeded):
            _draw_seed(self._of_loader)
        self._seeded = True
        return copy

    def begin(self) -> tuple[Epoch, Iterator[Any]]:
        """An epoch that begins, or is resumed, and the rest of its order."""
        epoch, self._resumed = self._resumed or Epoch(self.epoch.number + 1, self.step), None
        if epoch.begun:
            if epoch.drawn_from is not None:
                _set_state(self._generator, epoch.drawn_from)
            self._restore_sampler(epoch.sampler)
        else:
            epoch.begun = True
            if self._seed is None:
                self._seed = _first_number(_get_state(self._generator or self._of_loader))
            epoch.drawn_from = _get_state(self._generator) if self._draws_at_random else None
            epoch.sampler = self._save_sampler()
        self.epoch = epoch
        rest = iter(self.sampler)
        for _ in range(epoch.position):
            if next(rest, self) is self:
                break
        return epoch, rest

    @property
    def latest(self) -> Draws | None:
        """What the last iterator takes indices from, as long as there is one."""
        return self._latest() if self._latest else None

    def seed(self, epoch: Epoch, position: int) -> int:
        """A seed for the batch at a position, whoever loads it."""
        digest = hashlib.blake2b(f"{self._seed} {epoch.number} {position}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1

    def _save_sampler(self) -> Any:
        return self._leaf.state_dict() if hasattr(self._leaf, "state_dict") else None

    def _restore_sampler(self, state: Any) -> None:
        if state is not None and hasattr(self._leaf, "load_state_dict"):
            self._leaf.load_state_dict(state)

    @property
    def _is_global(self) -> bool:
        return self._draws_at_random and self._generator is None

    # ------------------------------------------------------------ states

    @property
    def resuming(self) -> bool:
        """Whether the next epoch is one that was begun in another run."""
        return self._resumed is not None

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is: integers and tensors only, unless the sampler's own state has others."""
        if self._resumed is None and self.latest is not None:
            self.latest.draw()  # an iterator was made, and its first batch not yet asked for
        epoch = self._resumed or self.epoch
        inside = epoch.begun and not epoch.done
        generator = self._generator or self._of_loader
        return {
            "version": VERSION,
            "batches": len(self.sampler),
            "epoch": epoch.number,
            "position": epoch.position if inside else None,
            "seed": self._seed,
            "seeds_each_epoch": self._seeds_each_epoch,
            "seeded": self._seeded,
            "drawn_from": epoch.drawn_from if inside else None,
            "sampler": epoch.sampler if inside else self._save_sampler(),
            "sampler_epoch": getattr(self._leaf, "epoch", None),
            "generator": None if generator is None or inside else generator.get_state(),
            "global": torch.get_rng_state() if self._is_global else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go where another loader was; the next iterator begins there. Raises UsageError when the two do not fit."""
        try:
            version, batches, epoch = state["version"], state["batches"], Epoch(state["epoch"])
            inside = state["position"] is not None
            if inside:
                epoch = Epoch(epoch.number, state["position"], True, False, state["drawn_from"], state["sampler"])
            seed, generator_state, global_state = state["seed"], state["generator"], state["global"]
            seeds_each_epoch, seeded = state["seeds_each_epoch"], state["seeded"]
        except (KeyError, TypeError, IndexError):
            raise UsageError("this is not what state_dict of an fffs.torch.DataLoader returns") from None
        if version != VERSION:
            raise UsageError(f"the state is of version {version}, and this release knows {VERSION}")
        if batches != len(self.sampler):
            raise UsageError(
                f"the state is of a loader with {batches} batches, and this one has {len(self.sampler)}; "
                "data set, batch size, drop_last and sampler must be the same"
            )
        self._seed, self._latest = seed, None
        self._seeds_each_epoch, self._seeded = seeds_each_epoch, seeded
        if inside:
            self._resumed = epoch
        else:
            epoch.done, self._resumed, self.epoch = True, None, epoch
            self._restore_sampler(state["sampler"])
        generator = self._generator or self._of_loader
        if generator is not None and generator_state is not None:
            generator.set_state(generator_state)
        if global_state is not None and self._is_global:
            torch.set_rng_state(global_state)
        if state["sampler_epoch"] is not None and hasattr(self._leaf, "set_epoch"):
            self._leaf.set_epoch(state["sampler_epoch"])


class Draws:
    """What torch's iterator takes indices from. torch makes one or two for an epoch, and uses the last."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._epoch: Epoch | None = None
        self._rest: Iterator[Any] = iter(())
        self._position = 0

    def draw(self) -> Epoch:
        """Draw the order, unless that is done."""
        if self._epoch is None:
            self._epoch, self._rest = self._order.begin()
            self._position = self._epoch.position
            # Generators draw when they are asked for the first time.
            first = list(itertools.islice(self._rest, 1))
            self._rest = itertools.chain(first, self._rest)
            if self._order.look_ahead:
                self._rest = self._order.look_ahead(self._rest, len(self._order.sampler) - self._position)
        return self._epoch

    def __iter__(self) -> Draws:
        return self

    def __next__(self) -> Any:
        epoch = self.draw()
        indices = next(self._rest)
        seed = self._order.seed(epoch, self._position)
        self._position += 1
        if self._order.kind is Kind.PLAIN:
            return indices
        if isinstance(indices, Iterable) and getattr(indices, "ndim", None) != 0:  # a number of torch's has no items
            return Batch(indices, seed, joined=self._order.kind is Kind.JOINED)
        return Batch([indices], seed, single=True)


def _get_state(generator: torch.Generator | None) -> torch.Tensor:
    return torch.get_rng_state() if generator is None else generator.get_state()


def _set_state(generator: torch.Generator | None, state: torch.Tensor) -> None:
    if generator is None:
        torch.set_rng_state(state)
    else:
        generator.set_state(state)


def _first_number(state: torch.Tensor) -> int:
    """The first number that a generator in this state would give."""
    generator = torch.Generator()
    generator.set_state(state)
    return _draw_seed(generator)


def _draw_seed(generator: torch.Generator | None) -> int:
    """A number, drawn as torch draws the seed of workers."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
