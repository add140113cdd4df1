"""Epoch: the state of one pass of a loader through its data set."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from fffs.torch.samplers import copied, digest, plain


@dataclass
class Epoch:
    """An epoch: its initial state, and its position."""

    number: int
    position: int = 0  # batches that were skipped or returned to the caller
    begun: bool = False
    done: bool = False
    drawn_from: list[torch.Tensor] | None = None  # the states of generators right before the order was drawn
    samplers: list[Any] = field(default_factory=list)  # the samplers' states at that moment
    told: list[int | None] = field(default_factory=list)  # the epochs that the samplers had been told then
    fits: dict[str, Any] = field(default_factory=dict)  # the description of the loader then, see Order
    # Batches from the sampler: their number, whether it has ended, their checksum, and those not yet returned.
    drawn: int = 0
    ended: bool = False
    digest: int = 0
    recent: collections.deque[Any] = field(default_factory=collections.deque)

    def note(self, batch: Any) -> None:
        """Record a batch from the sampler. It is copied, because samplers may reuse one list."""
        self.drawn += 1
        self.digest = digest(batch, self.digest)
        self.recent.append(copied(batch))
        while len(self.recent) > max(self.drawn - self.position, 0):
            self.recent.popleft()

    @property
    def ahead(self) -> list[Any]:
        """The batches from the sampler that were not returned to the caller yet."""
        count = max(self.drawn - self.position, 0)
        return [plain(batch) for batch in itertools.islice(self.recent, len(self.recent) - count, None)]


def noted(batches: Iterator[Any], epoch: Epoch) -> Iterator[Any]:
    """Yield the batches of a sampler, and record each in the epoch."""
    for batch in batches:
        kept = list(batch) if isinstance(batch, Iterator) else batch
        epoch.note(kept)
        yield kept
    epoch.ended = True
