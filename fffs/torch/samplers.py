"""Samplers: where an order comes from, and what of that can be saved and put back."""

from __future__ import annotations

import contextlib
import copy
import operator
import struct
import zlib
from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from fffs.torch.generators import Source

LISTS = (list, tuple, range, np.ndarray, torch.Tensor)
WITHOUT_GENERATOR = (SequentialSampler, DistributedSampler, *LISTS)
# What their orders come from is known: a generator, perhaps as they go, and what they were made with.
KNOWN = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler, *WITHOUT_GENERATOR)
SETTINGS = (
    "replacement",
    "num_replicas",
    "rank",
    "shuffle",
    "seed",
    "batch_size",
    "drop_last",
    "num_samples",
    "total_size",
)


class Samplers:
    """A loader's sampler and those inside it: from the one of batches to the one of indices.

    Of a subclass, or somebody's own, nobody knows what its order comes from: what it gave can be compared, no more.
    Of all of them that is compared: a known one, too, may have been changed, or share its generator.
    """

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self._all = [sampler]
        while hasattr(self._all[-1], "sampler"):
            self._all.append(self._all[-1].sampler)
        *wrappers, leaf = self._all
        self.known = type(leaf) in KNOWN and all(type(wrapper) is BatchSampler for wrapper in wrappers)
        found = [getattr(one, "generator", None) for one in reversed(self._all)]
        self.generators = [generator for generator in found if isinstance(generator, torch.Generator)]

    @property
    def batches(self) -> int | None:
        """How many an epoch has; None: the sampler does not say."""
        return length(self.sampler)

    @property
    def sources(self) -> list[Source]:
        """The generators that the order may come from."""
        if not self.known:
            return [*self.generators, None]
        return [] if type(self._all[-1]) in WITHOUT_GENERATOR else [*self.generators[:1]] or [None]

    @property
    def may_hide_state(self) -> bool:
        """Whether the order may come from something that is neither saved nor put back."""
        own = [one for one in self._all if type(one) not in (*KNOWN, BatchSampler)]
        return any(not (_is_stateful(one) or hasattr(one, "set_epoch") or _has_generator(one)) for one in own)

    @property
    def name(self) -> str:
        """What errors call it."""
        return type(self._all[-1] if self.known else next(o for o in self._all if type(o) is not BatchSampler)).__name__

    @property
    def why_another_order(self) -> str:
        """What is said of a sampler that does not give again what it gave, in one line."""
        if self.known:
            return (
                "the sampler gives another order than in the run that was saved: it was told another epoch or made "
                "with something else, or other parts of the program drew from its generator while it did"
            )
        return (
            "the sampler gives another order than in the run that was saved: what it comes from is not in the state; "
            "give the sampler state_dict and load_state_dict"
        )

    def settings(self) -> dict[str, Any]:
        """What must be the same for the same order: kinds, and numbers that samplers of torch are made with."""
        found: dict[str, Any] = {"sampler": " of ".join(type(one).__qualname__ for one in self._all)}
        found["generator"] = "of its own" if self.generators else "that is torch's"
        for one in self._all:
            values = ((name, getattr(one, name, None)) for name in SETTINGS)
            found |= {f"{type(one).__qualname__}.{name}": value for name, value in values if type(value) in (int, bool)}
        for one in self._all:
            ranges = ((name, length(getattr(one, name, None))) for name in ("data_source", "dataset"))
            found |= {f"{type(one).__qualname__}.{name}": count for name, count in ranges if count is not None}
        leaf = self._all[-1]
        chosen = leaf if isinstance(leaf, LISTS) else getattr(leaf, "weights", getattr(leaf, "indices", None))
        return found | {"indices or weights": _checksum(chosen)}

    @property
    def done_with(self) -> tuple[str, ...]:
        """Which of the settings the sampler does not look at again in an epoch; of one that is not known: none that can
        be told, and what it gives is all that counts.
        """
        if not self.known:
            return ("batches", *self.settings())
        return ("indices or weights",) if type(self._all[-1]) is WeightedRandomSampler else ()

    def save(self) -> list[Any]:
        """The state of each one that has one."""
        # A copy: one that gives out what it goes on to change would otherwise change what is saved.
        return [copy.deepcopy(one.state_dict()) if _is_stateful(one) else None for one in self._all]

    def restore(self, states: list[Any]) -> None:
        """Put back what ``save`` returned."""
        for one, state in zip(self._all, states, strict=True):
            if _is_stateful(one):
                one.load_state_dict(copy.deepcopy(state))

    def epochs(self) -> list[int | None]:
        """The number of the epoch that each one has been told."""
        found = [getattr(one, "epoch", None) for one in self._all]
        return [epoch if type(epoch) is int and hasattr(one, "set_epoch") else None for one, epoch in self._zip(found)]

    def set_epochs(self, epochs: list[int | None]) -> None:
        """Tell each one what ``epochs`` returned."""
        for one, epoch in self._zip(epochs):
            if epoch is not None and hasattr(one, "set_epoch"):
                one.set_epoch(epoch)

    def told_other_than(self, epochs: list[int | None]) -> bool:
        """Whether a known sampler was told another epoch, and gives another order in that."""
        shuffled = getattr(self._all[-1], "shuffle", True)
        return self.known and shuffled and self.epochs() != epochs

    def _zip(self, values: list[Any]) -> Iterable[tuple[Any, Any]]:
        return zip(self._all, values, strict=True)

    def __len__(self) -> int:
        return len(self._all)


def length(value: Any) -> int | None:
    """How many there are; None: it does not say."""
    try:
        return len(value)
    except (TypeError, NotImplementedError):
        return None


def _is_stateful(sampler: Any) -> bool:
    return hasattr(sampler, "state_dict") and hasattr(sampler, "load_state_dict")


def _has_generator(sampler: Any) -> bool:
    return isinstance(getattr(sampler, "generator", None), torch.Generator)


def _checksum(chosen: Any) -> int | None:
    """Of the numbers that a sampler chooses from, or by; None: it has none."""
    if isinstance(chosen, range):
        chosen = np.arange(chosen.start, chosen.stop, chosen.step)
    if isinstance(chosen, torch.Tensor):  # on whatever device, of whatever type, whether or not it has gradients
        return zlib.crc32(chosen.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    if isinstance(chosen, np.ndarray):
        return zlib.crc32(repr(chosen.tolist()).encode() if chosen.dtype.hasobject else chosen.tobytes())
    try:
        return zlib.crc32(array("q", chosen)) if isinstance(chosen, (list, tuple)) else None
    except (TypeError, ValueError, OverflowError):  # keys of another kind
        return zlib.crc32(repr(chosen).encode())


def digest(batch: Any, crc: int) -> int:
    """A checksum of what a sampler gave, continuing that of what it gave before."""
    try:
        numbers = batch if isinstance(batch, (list, tuple)) else _listed(batch)
        data = struct.pack(f"<{len(numbers)}q", *numbers)  # faster than an array
    except (TypeError, struct.error):  # keys of another kind
        data = repr(batch).encode()
    return zlib.crc32(data, zlib.crc32(len(data).to_bytes(8, "little"), crc))


def copied(batch: Any) -> Any:
    """What a sampler gave, as it is now."""
    if type(batch) is list and set(map(type, batch)) <= {int}:
        return batch.copy()
    fresh = plain(batch)
    if fresh is batch and type(batch) is not int:
        with contextlib.suppress(Exception):  # keys that cannot be copied are used as they are
            return copy.deepcopy(batch)
    return fresh


def own(batch: Any) -> Any:
    """The same batch, in no object that the sampler may fill again while it waits in a worker's queue."""
    if type(batch) is torch.Tensor:
        return batch.clone()
    return batch.copy() if type(batch) in (list, np.ndarray) else batch


def plain(batch: Any) -> Any:
    """What a sampler gave, as an integer or a list of integers, where it is made of integers."""
    try:
        return (
            _listed(batch) if getattr(batch, "ndim", 0) or isinstance(batch, (list, tuple)) else operator.index(batch)
        )
    except TypeError:
        return batch


def _listed(batch: Any) -> list[int]:
    """Raises TypeError: it is made of something else."""
    single = isinstance(batch, int) or getattr(batch, "ndim", None) == 0
    return [operator.index(batch)] if single else list(map(operator.index, batch))
