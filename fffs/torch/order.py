"""Order: the batches that a loader asks for, from a given one on, and the state that is needed to repeat them.

torch draws the order of an epoch from a generator when the first batch is asked for. A resumed run needs only the state
of the generator right before that, and the number of batches that the caller got: it draws the same order and skips
those batches without reading them.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import hashlib
import itertools
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from fffs.torch.ahead import LookAhead
from fffs.torch.batch import Batch, seed_generators
from fffs.torch.epoch import Epoch, noted
from fffs.torch.generators import Source, draw_seed, first_number, get_state, set_state
from fffs.torch.replay import Replay
from fffs.torch.samplers import RANK, Samplers, digest, own, plain
from fffs.torch.state import CHANGED, VERSION, on_cpu, refuse_what_does_not_fit, refuse_what_is_no_state


class Kind(enum.Enum):
    """The argument that a data set is called with."""

    PLAIN = enum.auto()  # the sampler's batch, for data sets of other packages
    SEEDED = enum.auto()  # a Batch, for data sets of fffs
    JOINED = enum.auto()  # a Batch whose records Collate reads
    OWN = enum.auto()  # a Batch for a data set that does not seed the generators: with batches of its own


class Order:
    """Replaces the sampler of a loader. Its iterators yield what to load, including seeds.

    Not thread-safe, like loaders.
    """

    def __init__(
        self,
        sampler: Any,
        generator: torch.Generator | None,
        fits: Callable[[], dict[str, Any]],
        look_ahead: Callable[[Iterator[Any], int], LookAhead] | None = None,
        persistent: bool = False,
    ) -> None:
        """sampler: of batches, or of indices. generator: the loader's. fits: describes the loader; one that resumes its
        state must have an equal description. look_ahead: wraps an iterator of this many batches, and may inspect them
        in advance. persistent: all epochs use the same workers.
        """
        self.sampler, self.look_ahead, self._fits = sampler, look_ahead, fits
        self.kind = Kind.PLAIN  # the form in which the next iterator yields batches; the loader sets it
        self.is_here = True  # batches are loaded in this process; the loader sets it, too
        self.step = 0
        self.epoch = Epoch(0)
        # When torch makes an iterator, it draws a seed for its workers from the generator that the order comes from:
        # for each epoch, or with persistent workers only for the first. A resumed run does what the first run did.
        self._seeds_each_epoch, self._seeded = not persistent, False
        self._latest: weakref.ref[Draws] | None = None  # of the last iterator
        self._seed: int | None = None  # for the random numbers that samples use
        self._resumed: Replay | None = None
        self._samplers = Samplers(sampler)
        self._of_loader = generator
        self._own = list(dict.fromkeys([*self._samplers.generators, *([generator] if generator else [])]))

    def __len__(self) -> int:
        return max(len(self.sampler) - self.step, 0)

    @property
    def batches(self) -> int | None:
        """The number of batches of an epoch, or None if the sampler has no len()."""
        return self._samplers.batches

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_latest": None}  # a copy has no iterators

    def __iter__(self) -> Iterator[Any]:
        draws = Draws(self)
        self._latest = weakref.ref(draws)
        return draws

    # ------------------------------------------------------------ epochs

    def seed_source(self, torch_draws: bool) -> Source:
        """Return the generator from which torch's next iterator draws the seed of its workers. The loader's generator
        advances exactly when it would in a run that was not interrupted.
        """
        draws = not self.resuming and (self._seeds_each_epoch or not self._seeded)
        self._seeded = True
        if draws and not torch_draws:
            draw_seed(self._of_loader)
        if draws or not torch_draws:
            return self._of_loader
        other = torch.Generator(torch.empty(()).device)  # the device of torch's draw
        epoch = self._resumed.epoch if self._resumed else Epoch(self.epoch.number + 1)
        other.manual_seed(self.seed(epoch, -1, []))
        return other

    def begin(self) -> tuple[Epoch, Iterator[Any]]:
        """Begin or resume an epoch. Returns it, and the rest of its order."""
        self.replay()
        if self._resumed is not None:
            replay, self._resumed = self._resumed, None
            assert replay.rest is not None
            self.epoch = replay.epoch
            return self.epoch, replay.rest
        epoch = Epoch(self.epoch.number + 1, self._first, begun=True)
        if self._seed is None:
            self._seed = first_number(get_state(self._own[0] if self._own else None))
        epoch.drawn_from = [get_state(source) for source in self._samplers.sources]
        epoch.samplers, epoch.told, epoch.fits = self._samplers.save(), self._samplers.epochs(), self._described()
        try:
            rest = noted(iter(self.sampler), epoch)
            collections.deque(itertools.islice(rest, epoch.position), maxlen=0)
            rest = _asked(rest)
        except BaseException:  # such as an interrupt: the epoch has not begun, and its order is drawn again
            for source, drawn_from in zip(self._samplers.sources, epoch.drawn_from, strict=True):
                set_state(source, drawn_from)
            self._samplers.restore(epoch.samplers)
            raise
        self.epoch = epoch
        return epoch, rest

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """A block in which torch's iterator is made, and with workers, draws batches for them. If that fails, no epoch
        was begun: the next iterator gives the same batches. (If the sampler may have a hidden state, it cannot.)
        """
        epoch, resuming, state = self.epoch, self.resuming, get_state(self._of_loader)
        before = self._latest, self._seeded
        try:
            yield
        except BaseException:
            if self.epoch is epoch:
                set_state(self._of_loader, state)
                self._latest, self._seeded = before
            elif resuming or self._samplers.known:
                self.load_state_dict(self.state_dict())
            raise

    @property
    def _first(self) -> int:
        """The position at which the next epoch begins, if it is not resumed."""
        return self.step

    def replay(self) -> None:
        """Draw the order of an epoch that is to be resumed. If nothing is left of the epoch, it may be over.

        Raises UsageError: the sampler gives another order than in the saved run.
        """
        if self._resumed is not None:
            self._resumed.draw()
            if self._resumed.is_over:
                self.epoch, self._resumed = Epoch(self._resumed.epoch.number, done=True), None

    @property
    def latest(self) -> Draws | None:
        """The ``Draws`` of the last iterator, or None if that was deleted."""
        return self._latest() if self._latest else None

    def seed(self, epoch: Epoch, position: int, batch: Any) -> int:
        """Return the seed for the batch at a position. It does not depend on the worker that loads the batch. The ranks
        of a run are usually seeded alike: they draw different numbers for different indices, and equal ones for equal
        indices.
        """
        told = f"{self._seed} {epoch.number} {position} {digest(batch, 0)}"
        return int.from_bytes(hashlib.blake2b(told.encode(), digest_size=8).digest(), "little") >> 1

    # ------------------------------------------------------------ states

    @property
    def resuming(self) -> bool:
        """Whether the next epoch was begun in another run."""
        return self._resumed is not None

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the loader: integers and tensors, except for what is in a sampler's state or indices."""
        if self._resumed is None and self.latest is not None:
            self.latest.draw()  # the first batch of an existing iterator may not have been asked for yet
        if self._seed is None:
            self._seed = self._first_seed()
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
            # Also between epochs: torch.distributed.checkpoint wants each tensor of the state of a new loader.
            "drawn_from": epoch.drawn_from if inside else list(map(get_state, self._samplers.sources)),
            "samplers": epoch.samplers if inside else self._samplers.save(),
            "sampler_epochs": epoch.told if inside else self._samplers.epochs(),
            "generators": waits.states if waits else [generator.get_state() for generator in self._own],
            "global": torch.get_rng_state() if self._is_global else None,
        }

    def _first_seed(self) -> int:
        """Return the seed that the first epoch would have if it began now. A state that is taken before settles it:
        until the epoch begins, other code may draw from the generator, and another process has another one.
        """
        generator = torch.Generator()
        generator.set_state(get_state(self._own[0] if self._own else None))
        if (self._seeds_each_epoch or not self._seeded) and self._own[:1] in ([], [self._of_loader]):
            draw_seed(generator)  # torch's iterator draws the seed of its workers first
        return draw_seed(generator)

    @property
    def _is_global(self) -> bool:
        return None in self._samplers.sources

    def _described(self) -> dict[str, Any]:
        return {**self._fits(), **self._samplers.settings(), "batches": self.batches}

    def _described_since(self, then: dict[str, Any]) -> dict[str, Any]:
        """Return the description of the loader at the beginning of the epoch, with CHANGED for values that have changed
        since: no loader can resume such an epoch, unless the sampler does not use the value again.
        """
        now, done_with = self._described(), ("files", *self._samplers.done_with)  # more files may be open
        changed = (key for key, value in then.items() if key not in done_with and value not in (None, now.get(key)))
        return then | dict.fromkeys(changed, CHANGED)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue, with the next iterator, where another loader was. Raises UsageError if the state does not fit."""
        state = on_cpu(state)
        refuse_what_is_no_state(state)
        described, its_rank = self._described(), state["fits"].get(RANK)
        if self._samplers.follows_from_arguments and RANK in described:
            state = state | {"fits": {**state["fits"], RANK: described[RANK]}}
        lengths = {"samplers": len(self._samplers), "sampler_epochs": len(self._samplers)}
        lengths |= {"drawn_from": len(self._samplers.sources), "generators": len(self._own)}
        refuse_what_does_not_fit(state, described, lengths)
        self._seed, self._seeded, self._seeds_each_epoch = state["seed"], state["seeded"], state["seeds_each_epoch"]
        self._latest = self._resumed = None
        if state["position"] is None:
            self.epoch = Epoch(state["epoch"], done=True)
            self._samplers.restore(state["samplers"])
            if state["epoch"] and self._samplers.may_hide_state:
                warnings.warn(
                    f"{self._samplers.name}: the next epoch is that of the other run only if the order comes from "
                    "torch's generator alone; if not, add state_dict and load_state_dict, or set_epoch, to the sampler",
                    stacklevel=3,
                )
        for generator, generator_state in zip(self._own, state["generators"], strict=True):
            generator.set_state(generator_state)
        if state["global"] is not None and self._is_global:
            torch.set_rng_state(state["global"])
        self._samplers.set_epochs(state["sampler_epochs"])
        if state["position"] is not None:
            epoch = _epoch_of(state)
            if its_rank != state["fits"].get(RANK):
                epoch = self._of_this_rank(epoch)
            self._resumed = Replay(epoch, state["generators"], self._samplers, self._own)

    def _of_this_rank(self, epoch: Epoch) -> Epoch:
        """Return the epoch of another rank with the order of this one. It is drawn without using any generator."""
        fresh = dataclasses.replace(epoch, drawn=0, ended=False, digest=0, recent=collections.deque())
        collections.deque(itertools.islice(noted(iter(self.sampler), fresh), fresh.position), maxlen=0)
        return fresh


class Draws:
    """The iterator from which torch's iterator takes indices. torch makes one or two per epoch, and uses the last."""

    def __init__(self, order: Order) -> None:
        self._order, self._kind = order, order.kind
        self._epoch: Epoch | None = None
        self._rest: Iterator[Any] = iter(())
        self._upcoming: Callable[[], list[bytes]] = list
        self._position = 0

    @property
    def position(self) -> int:
        """The position of the batch that is drawn next."""
        return self._position

    def draw(self) -> Epoch:
        """Draw the order, if that was not done yet."""
        if self._epoch is None:
            self._epoch, self._rest = self._order.begin()
            self._position = self._epoch.position
            if self._order.look_ahead:
                ahead = self._order.look_ahead(self._rest, len(self._order.sampler) - self._position)
                self._rest, self._upcoming = ahead, ahead.upcoming
        return self._epoch

    def __iter__(self) -> Draws:
        return self

    def __next__(self) -> Any:
        epoch = self.draw()
        indices = next(self._rest)
        position, self._position = self._position, self._position + 1
        if self._kind is Kind.PLAIN:
            return own(indices)
        single = not isinstance(indices, Iterable) or getattr(indices, "ndim", None) == 0  # a 0-d tensor is an index
        numbers = [plain(indices)] if single else plain(indices)
        seed = self._order.seed(epoch, position, numbers)
        is_own = self._kind is Kind.OWN
        batch = Batch(numbers, seed, self._kind is Kind.JOINED, single, self._upcoming(), is_own)
        if is_own and self._order.is_here:
            seed_generators(seed)
        batch.arrives = is_own and not self._order.is_here
        return batch


def _asked(batches: Iterator[Any]) -> Iterator[Any]:
    """Return the same batches, after asking the sampler for the first, so that it draws from its generator now."""
    return itertools.chain(list(itertools.islice(batches, 1)), batches)


def _epoch_of(state: dict[str, Any]) -> Epoch:
    """Return the epoch in which a state was saved."""
    ahead, position = collections.deque(state["ahead"]), state["position"]
    at = {"drawn": position + len(ahead), "ended": state["ended"], "digest": state["digest"]}
    began = {"drawn_from": state["drawn_from"], "samplers": state["samplers"], "told": state["sampler_epochs"]}
    return Epoch(state["epoch"], position, begun=True, recent=ahead, fits=dict(state["fits"]), **began, **at)
