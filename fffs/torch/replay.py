"""Replay: draws the order of an epoch again that was begun in another run."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator
from typing import Any

import torch

from fffs.errors import UsageError
from fffs.torch.epoch import Epoch, noted
from fffs.torch.generators import Source, get_state, set_state
from fffs.torch.samplers import Samplers

END = object()


class Replay:
    """An epoch that a loader resumes, and the rest of its order.

    Attributes:
        epoch: the epoch as the other run left it.
        states: the states of the loader's generators when the state was saved.
        rest: the rest of the order; None: not drawn yet.
        is_over: nothing was left, and the sampler was told another epoch, so the next epoch begins.

    """

    def __init__(
        self, epoch: Epoch, states: list[torch.Tensor], samplers: Samplers, generators: list[torch.Generator]
    ) -> None:
        """samplers: already told the epoch of the other run. generators: those with the ``states``."""
        self.epoch, self.states = epoch, states
        self.rest: Iterator[Any] | None = None
        self.is_over = False
        self._samplers, self._told = samplers, samplers.epochs()
        self._generators: list[Source] = [*generators, None]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"rest": None}  # a copy has no iterators

    def draw(self) -> None:
        """Draw the order again, if that was not done yet, and skip the batches that were drawn. Afterwards the loader's
        generators are in the states in which they were saved, because other code may have drawn from them after the
        order was drawn. torch's global generator is unchanged.

        If the sampler was told another epoch meanwhile, and only the end of the old epoch may be left, it is asked for
        that end, so that generators advance as in a run that was not interrupted.

        Raises UsageError: the sampler gives another order than in the saved run. Nothing has changed then.
        """
        if self.rest is not None or self.is_over:
            return
        before, told = list(map(get_state, self._generators)), self._samplers.epochs()
        saved = [*self.states, before[-1]]
        try:
            self.is_over = told != self._told and self._may_be_over and self._ends(saved, told)
            if not self.is_over:
                self.rest = self._drawn_again()
                if self._samplers.told_other_than(self.epoch.told):
                    self._refuse()
                self._put_back(saved)
        except BaseException:
            self.rest = None
            self._put_back(before)
            self._samplers.set_epochs(told)
            raise

    @property
    def _may_be_over(self) -> bool:
        count = self._samplers.batches
        return not self.epoch.ahead and (self.epoch.ended or count is None or self.epoch.position >= count)

    def _ends(self, saved: list[torch.Tensor], told: list[int | None]) -> bool:
        """Return whether the sampler has nothing left in the epoch of the state."""
        self._samplers.set_epochs(self._told)
        rest = self._drawn_again()
        self._put_back(saved)
        ends = self.epoch.ended or next(rest, END) is END
        self._samplers.set_epochs(told)
        return ends

    def _drawn_again(self) -> Iterator[Any]:
        """Return the rest of the order. This advances generators."""
        epoch = self.epoch
        for source, state in zip(self._samplers.sources, epoch.drawn_from or [], strict=True):
            set_state(source, state)
        self._samplers.restore(epoch.samplers)
        again, rest = Epoch(epoch.number, epoch.drawn), iter(self._samplers.sampler)
        # A sampler may draw numbers when it is asked for more than it has, so it is asked as often as in the saved run.
        collections.deque(itertools.islice(noted(rest, again), epoch.drawn + epoch.ended), maxlen=0)
        if (again.drawn, again.ended, again.digest) != (epoch.drawn, epoch.ended, epoch.digest):
            self._refuse()
        # Batches that the caller did not get are in the state: other code may have drawn numbers in between.
        return itertools.chain(list(epoch.recent), noted(rest, epoch))

    def _refuse(self) -> None:
        raise UsageError(f"{self._samplers.name}: {self._samplers.why_another_order}")

    def _put_back(self, states: list[torch.Tensor]) -> None:
        for generator, state in zip(self._generators, states, strict=True):
            set_state(generator, state)
