"""LookAhead: the batches after the one that is loaded, which disks and stores read while the program computes."""

from __future__ import annotations

import contextlib
import resource
from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

from torch.utils.data import BatchSampler, RandomSampler

from fffs.native import lib
from fffs.torch.dataset import Dataset
from fffs.torch.samplers import KNOWN, LISTS

FARTHEST: Final = 4  # the most batches that a worker knows in advance, as many as fffs_remote_depth ever says


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


class LookAhead(ABC):
    """Iterates over batches of indices, of which it holds some in advance.

    The last batch is never held in advance: to complete it, a RandomSampler already draws the next permutation from its
    generator, which is too early for a loop that stops there.
    """

    def __init__(self, batches: Iterator[Any], left: int) -> None:
        """left: the number of batches."""
        self._batches, self._left = batches, left
        self._held: deque[Any] = deque()

    def __iter__(self) -> LookAhead:
        return self

    def __next__(self) -> Any:
        if not self._held:
            self._pull()
        with contextlib.suppress(StopIteration):  # the sampler is shorter than its len()
            while len(self._held) <= self._wanted() and self._left > 1:
                self._pull()
        return self._held.popleft()  # the last step, so that an interrupt before it loses no batch

    def _pull(self) -> None:
        self._held.append(next(self._batches))
        self._left -= 1

    @abstractmethod
    def _wanted(self) -> int:
        """Return how many batches to hold in addition to the one that is returned."""

    def upcoming(self) -> list[bytes]:
        """Return the batches, ``packed``, that the worker of the last returned one gets next, to be announced there."""
        return []


class Announced(LookAhead):
    """For loaders without workers: announces batches to the data set before it returns the previous one.

    A batch of local files is announced only if the process has recently read from disks, which getrusage(2) tells; data
    in memory needs no announcement. Objects in stores are announced as far in advance as turns out to be useful.
    """

    def __init__(self, batches: Iterator[Any], left: int, dataset: Dataset) -> None:
        super().__init__(batches, left)
        self._dataset, self._remote = dataset, dataset.is_remote
        self._before = _from_disks()

    def _wanted(self) -> int:
        return int(lib.fffs_remote_depth()) if self._remote else 1

    def _pull(self) -> None:
        super()._pull()
        if len(self._held) < 2:  # it is returned right away
            return
        batch, now = self._held[-1], _from_disks()
        if (self._remote or now != self._before) and isinstance(batch, list):
            self._dataset.announce_safely(batch)
        self._before = now


class Told(LookAhead):
    """For loaders with workers, of objects in stores: each batch tells its worker which ones it gets next.

    torch gives batches to workers in turn, so those of one worker are as many apart as there are workers. If torch
    departs from that, what was read in advance is dropped, and nothing else happens.
    """

    def __init__(self, batches: Iterator[Any], left: int, workers: int) -> None:
        super().__init__(batches, left)
        self._workers = workers
        self._packed: deque[bytes] = deque()

    def __next__(self) -> Any:
        batch = super().__next__()
        self._packed.popleft()
        return batch

    def _pull(self) -> None:
        super()._pull()
        self._packed.append(packed(self._held[-1]))

    def _wanted(self) -> int:
        return FARTHEST * self._workers

    def upcoming(self) -> list[bytes]:
        """As in ``LookAhead``. Called right after a batch was returned."""
        places = range(self._workers - 1, len(self._packed), self._workers)
        return [self._packed[place] for place in places if self._packed[place]]


def packed(batch: Any) -> bytes:
    """Return the indices of a batch as int64, which is quicker to pickle than a list; empty if they are no integers.

    A batch is sent with each of up to ``FARTHEST`` batches before it.
    """
    try:
        return array("q", batch).tobytes() if isinstance(batch, list) else b""
    except (TypeError, OverflowError):
        return b""


def _from_disks() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_inblock
