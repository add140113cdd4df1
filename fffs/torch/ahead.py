"""Announces the next batch in loaders without workers, so that the disk works while the program computes."""

from __future__ import annotations

import contextlib
import resource
from collections import deque
from collections.abc import Iterator
from typing import Any

from torch.utils.data import BatchSampler, RandomSampler

from fffs.torch.dataset import Dataset
from fffs.torch.samplers import KNOWN, LISTS


def has_fixed_order(sampler: Any) -> bool:
    """Return whether a sampler, of batches or indices, is known to give the same if it is asked for a batch early.

    Others may share a generator with code that runs in between, choose indices by the results of the previous batch, or
    be lists that are changed.
    """
    while type(sampler) is BatchSampler:
        sampler = sampler.sampler
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    return type(sampler) in KNOWN and type(sampler) not in LISTS


class Announced:
    """Iterates over batches of indices, and announces each to the data set before it returns the previous one.

    A batch is announced only if the process has recently read from disks, which getrusage(2) tells; data in memory
    needs no announcement. The last batch is never announced: to complete it, a RandomSampler already draws the next
    permutation from its generator, which is too early for a loop that stops there.
    """

    def __init__(self, batches: Iterator[Any], left: int, dataset: Dataset) -> None:
        """left: the number of batches."""
        self._batches, self._left, self._dataset = batches, left, dataset
        self._held: deque[Any] = deque()
        self._before = _from_disks()

    def __iter__(self) -> Announced:
        return self

    def __next__(self) -> Any:
        if not self._held:
            self._pull()
        if len(self._held) == 1 and self._left > 1:
            with contextlib.suppress(StopIteration):  # the sampler is shorter than its len()
                self._pull()
                self._announce(self._held[-1])
        return self._held.popleft()  # the last step, so that an interrupt before it loses no batch

    def _pull(self) -> None:
        self._held.append(next(self._batches))
        self._left -= 1

    def _announce(self, batch: Any) -> None:
        now = _from_disks()
        if now != self._before and isinstance(batch, list):
            with contextlib.suppress(Exception):  # reading the batch reports errors
                self._dataset.announce(batch)
        self._before = now


def _from_disks() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_inblock
