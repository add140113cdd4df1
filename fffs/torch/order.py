"""Order: which batches a loader asks for, from which one on, and what it takes to ask for the same ones again.

torch draws the order of an epoch from a generator when the first batch is asked for. The state that the generator has
right then, and how many batches the caller got, is all that a resumed run needs: it draws the same order and passes
over what is done, without reading any of it.
"""

from __future__ import annotations

import collections
import enum
import hashlib
import itertools
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from fffs.torch.batch import Batch
from fffs.torch.epoch import Epoch, noted
from fffs.torch.generators import Source, draw_seed, first_number, get_state
from fffs.torch.replay import Replay
from fffs.torch.samplers import Samplers, own, plain
from fffs.torch.state import CHANGED, VERSION, on_cpu, refuse_what_does_not_fit, refuse_what_is_no_state


class Kind(enum.Enum):
    """What a data set is asked with."""

    PLAIN = enum.auto()  # what the sampler gives, for any data set
    SEEDED = enum.auto()  # a Batch, for ours
    JOINED = enum.auto()  # a Batch that Collate takes unread


class Order:
    """What a loader has in place of its sampler: iterated, it gives what to load, seeds included.

    Not thread-safe, as loaders are not.
    """

    def __init__(
        self,
        sampler: Any,
        generator: torch.Generator | None,
        kind: Kind,
        fits: Callable[[], dict[str, Any]],
        look_ahead: Callable[[Iterator[Any], int], Iterator[Any]] | None = None,
        persistent: bool = False,
    ) -> None:
        """sampler: of batches, or of indices. generator: the loader's. kind: what is to be given. fits: what another
        loader must have in common with this one to take over. look_ahead: gives the same batches again, of which there
        are so many, after it has done what it wants with those to come. persistent: the workers of the first epoch are
        those of all.
        """
        self.sampler, self.kind, self.look_ahead, self._fits = sampler, kind, look_ahead, fits
        self.step = 0
        self.epoch = Epoch(0)
        # torch draws a seed for its workers when it makes an iterator, from the generator that the order comes from:
        # for each epoch, or with persistent workers for the first alone. A resumed run keeps to what its first did.
        self._seeds_each_epoch, self._seeded = not persistent, False
        self._latest: weakref.ref[Draws] | None = None  # of the last iterator
        self._seed: int | None = None  # of the random numbers that samples use
        self._resumed: Replay | None = None
        self._samplers = Samplers(sampler)
        self._of_loader = generator
        self._own = list(dict.fromkeys([*self._samplers.generators, *([generator] if generator else [])]))

    def __len__(self) -> int:
        return max(len(self.sampler) - self.step, 0)

    @property
    def batches(self) -> int | None:
        """How many an epoch has; None: the sampler does not say."""
        return self._samplers.batches

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_latest": None}  # a copy has no iterators

    def __iter__(self) -> Iterator[Any]:
        draws = Draws(self)
        self._latest = weakref.ref(draws)
        return draws

    # ------------------------------------------------------------ epochs

    def seed_source(self, torch_draws: bool) -> Source:
        """What torch's next iterator is to draw the seed of workers from, if it does: its own generator moves exactly
        when it would in the run that was not interrupted.
        """
        draws = not self.resuming and (self._seeds_each_epoch or not self._seeded)
        self._seeded = True
        if draws and not torch_draws:
            draw_seed(self._of_loader)
        if draws or not torch_draws:
            return self._of_loader
        other = torch.Generator(torch.empty(()).device)  # where torch's number will be
        other.manual_seed(self.seed(self._resumed.epoch if self._resumed else Epoch(self.epoch.number + 1), -1))
        return other

    def begin(self) -> tuple[Epoch, Iterator[Any]]:
        """An epoch that begins, or is resumed, and the rest of its order."""
        self.replay()
        if self._resumed is not None:
            replay, self._resumed = self._resumed, None
            assert replay.rest is not None
            self.epoch = replay.epoch
            return self.epoch, replay.rest
        epoch = Epoch(self.epoch.number + 1, self.step, begun=True)
        if self._seed is None:
            self._seed = first_number(get_state(self._own[0] if self._own else None))
        epoch.drawn_from = [get_state(source) for source in self._samplers.sources]
        epoch.samplers, epoch.told, epoch.fits = self._samplers.save(), self._samplers.epochs(), self._described()
        self.epoch = epoch
        rest = noted(iter(self.sampler), epoch)
        collections.deque(itertools.islice(rest, epoch.position), maxlen=0)
        return epoch, _asked(rest)

    def replay(self) -> None:
        """Draw the order of an epoch that is to be resumed; one of which nothing is left may turn out to be over.

        Raises UsageError: the sampler does not give again what it gave.
        """
        if self._resumed is not None:
            self._resumed.draw()
            if self._resumed.is_over:
                self.epoch, self._resumed = Epoch(self._resumed.epoch.number, done=True), None

    @property
    def latest(self) -> Draws | None:
        """What the last iterator takes indices from, as long as there is one."""
        return self._latest() if self._latest else None

    def seed(self, epoch: Epoch, position: int) -> int:
        """A seed for the batch at a position, whoever loads it."""
        digest = hashlib.blake2b(f"{self._seed} {epoch.number} {position}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1

    # ------------------------------------------------------------ states

    @property
    def resuming(self) -> bool:
        """Whether the next epoch is one that was begun in another run."""
        return self._resumed is not None

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is: integers and tensors only, unless the sampler's own state or indices have others."""
        if self._resumed is None and self.latest is not None:
            self.latest.draw()  # an iterator was made, and its first batch not yet asked for
        replay, epoch = self._resumed, self._resumed.epoch if self._resumed else self.epoch
        inside, waits = epoch.begun and not epoch.done, replay if replay and replay.rest is None else None
        return {
            "version": VERSION,
            "fits": (epoch.fits if waits else self._described_since(epoch.fits)) if inside else self._described(),
            "epoch": epoch.number,
            "position": epoch.position if inside else None,
            "ahead": epoch.ahead if inside else [],
            "ended": epoch.ended if inside else False,
            "digest": epoch.digest if inside else 0,
            "seed": self._seed,
            "seeds_each_epoch": self._seeds_each_epoch,
            "seeded": self._seeded,
            "drawn_from": epoch.drawn_from if inside else None,
            "samplers": epoch.samplers if inside else self._samplers.save(),
            "sampler_epochs": epoch.told if inside else self._samplers.epochs(),
            "generators": waits.states if waits else [generator.get_state() for generator in self._own],
            "global": torch.get_rng_state() if self._is_global else None,
        }

    @property
    def _is_global(self) -> bool:
        return None in self._samplers.sources

    def _described(self) -> dict[str, Any]:
        return {**self._fits(), **self._samplers.settings(), "batches": self.batches}

    def _described_since(self, then: dict[str, Any]) -> dict[str, Any]:
        """What is to be had in common with an epoch, as it was when that began. Who changed it since has what no loader
        has in the rest of the epoch, unless the sampler is done with it.
        """
        now, done_with = self._described(), ("files", *self._samplers.done_with)  # more may be open
        changed = (key for key, value in then.items() if key not in done_with and value not in (None, now.get(key)))
        return then | dict.fromkeys(changed, CHANGED)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go where another loader was; the next iterator begins there. Raises UsageError when the two do not fit."""
        state = on_cpu(state)
        refuse_what_is_no_state(state)
        lengths = {"samplers": len(self._samplers), "sampler_epochs": len(self._samplers)}
        lengths |= {"drawn_from": len(self._samplers.sources), "generators": len(self._own)}
        refuse_what_does_not_fit(state, self._described(), lengths)
        self._seed, self._seeded, self._seeds_each_epoch = state["seed"], state["seeded"], state["seeds_each_epoch"]
        self._latest = self._resumed = None
        if state["position"] is None:
            self.epoch = Epoch(state["epoch"], done=True)
            self._samplers.restore(state["samplers"])
            if state["epoch"] and self._samplers.may_hide_state:
                warnings.warn(
                    f"{self._samplers.name}: the next epoch is that of the other run only if the order comes from "
                    "torch's generator alone; if not, give the sampler state_dict and load_state_dict, or set_epoch",
                    stacklevel=3,
                )
        for generator, generator_state in zip(self._own, state["generators"], strict=True):
            generator.set_state(generator_state)
        if state["global"] is not None and self._is_global:
            torch.set_rng_state(state["global"])
        self._samplers.set_epochs(state["sampler_epochs"])
        if state["position"] is not None:
            self._resumed = Replay(_epoch_of(state), state["generators"], self._samplers, self._own)


class Draws:
    """What torch's iterator takes indices from. torch makes one or two for an epoch, and uses the last."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._epoch: Epoch | None = None
        self._rest: Iterator[Any] = iter(())
        self._position = 0

    @property
    def position(self) -> int:
        """Of the batch that is drawn next."""
        return self._position

    def draw(self) -> Epoch:
        """Draw the order, unless that is done."""
        if self._epoch is None:
            self._epoch, self._rest = self._order.begin()
            self._position = self._epoch.position
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
            return own(indices)
        if isinstance(indices, Iterable) and getattr(indices, "ndim", None) != 0:  # a number of torch's has no items
            return Batch(plain(indices), seed, joined=self._order.kind is Kind.JOINED)
        return Batch([plain(indices)], seed, single=True)


def _asked(batches: Iterator[Any]) -> Iterator[Any]:
    """The same batches. The sampler has been asked for one: that is when it draws from its generator."""
    return itertools.chain(list(itertools.islice(batches, 1)), batches)


def _epoch_of(state: dict[str, Any]) -> Epoch:
    """The epoch that a state was saved in."""
    ahead, position = collections.deque(state["ahead"]), state["position"]
    at = {"drawn": position + len(ahead), "ended": state["ended"], "digest": state["digest"]}
    began = {"drawn_from": state["drawn_from"], "samplers": state["samplers"], "told": state["sampler_epochs"]}
    return Epoch(state["epoch"], position, begun=True, recent=ahead, fits=dict(state["fits"]), **began, **at)
