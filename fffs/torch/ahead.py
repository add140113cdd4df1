"""Loaders without workers: the next batch is announced, so that the disk works while the program computes."""

from __future__ import annotations

import contextlib
import resource
from collections import deque
from collections.abc import Iterator
from typing import Any

from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from fffs.torch.dataset import Dataset

# Their order does not depend on when they are asked. Others may draw numbers that somebody else draws in between, or
# choose by what became of the batch before.
KNOWN = (SequentialSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler)


def has_fixed_order(sampler: Any) -> bool:
    """Whether a sampler, of batches or of indices, is known to give the same when it is asked for a batch early."""
    while type(sampler) is BatchSampler:
        sampler = sampler.sampler
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    return type(sampler) in KNOWN


class Announced:
    """Batches of indices, each of which is announced to the data set before the one in front of it is given out.

    Only as long as anything comes from disks, which the kernel tells for the process: in memory it would be in vain.
    Never the last one: to complete it, RandomSampler's generator is asked for the next permutation already, which is
    too early for whoever stops there.
    """

    def __init__(self, batches: Iterator[Any], left: int, dataset: Dataset) -> None:
        """left: how many batches there are."""
        self._batches, self._left, self._dataset = batches, left, dataset
        self._held: deque[Any] = deque()
        self._before = _from_disks()

    def __iter__(self) -> Announced:
        return self

    def __next__(self) -> Any:
        if not self._held:
            self._pull()
        if len(self._held) == 1 and self._left > 1:
            with contextlib.suppress(StopIteration):  # a sampler that is shorter than it says
                self._pull()
                self._announce(self._held[-1])
        return self._held.popleft()  # last: an interrupt before this loses no batch

    def _pull(self) -> None:
        self._held.append(next(self._batches))
        self._left -= 1

    def _announce(self, batch: Any) -> None:
        now = _from_disks()
        if now != self._before and isinstance(batch, list):
            with contextlib.suppress(Exception):  # whoever reads it will be told
                self._dataset.announce(batch)
        self._before = now


def _from_disks() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_inblock
