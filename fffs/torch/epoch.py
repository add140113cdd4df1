"""Epoch: one pass of a loader through its data set: how it began, and how far it is."""

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
    """One epoch: how it began, and how far it is."""

    number: int
    position: int = 0  # batches passed over, and those the caller got
    begun: bool = False
    done: bool = False
    drawn_from: list[torch.Tensor] | None = None  # the states of generators right before the order was drawn
    samplers: list[Any] = field(default_factory=list)  # the samplers' states then
    told: list[int | None] = field(default_factory=list)  # and the epochs that they had been told
    fits: dict[str, Any] = field(default_factory=dict)  # and what another loader must have in common
    # What the sampler gave: how many batches, whether that was all, a checksum of them, and those that nobody got yet.
    drawn: int = 0
    ended: bool = False
    digest: int = 0
    recent: collections.deque[Any] = field(default_factory=collections.deque)

    def note(self, batch: Any) -> None:
        """A sampler gave a batch. It is copied: samplers may use one list again and again."""
        self.drawn += 1
        self.digest = digest(batch, self.digest)
        self.recent.append(copied(batch))
        while len(self.recent) > max(self.drawn - self.position, 0):
            self.recent.popleft()

    @property
    def ahead(self) -> list[Any]:
        """What the sampler gave and nobody got."""
        count = max(self.drawn - self.position, 0)
        return [plain(batch) for batch in itertools.islice(self.recent, len(self.recent) - count, None)]


def noted(batches: Iterator[Any], epoch: Epoch) -> Iterator[Any]:
    """What a sampler gives in an epoch, noted there."""
    for batch in batches:
        kept = list(batch) if isinstance(batch, Iterator) else batch
        epoch.note(kept)
        yield kept
    epoch.ended = True
