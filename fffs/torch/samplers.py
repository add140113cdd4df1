"""Samplers: the sources of an order, and saving and restoring their states."""

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

from fffs.torch.elastic import ElasticBatchSampler, ranks_of_group
from fffs.torch.generators import Source

LISTS = (list, tuple, range, np.ndarray, torch.Tensor)
WITHOUT_GENERATOR = (SequentialSampler, DistributedSampler, ElasticBatchSampler, *LISTS)
# The order of these depends only on their arguments and a generator, from which they may draw during the epoch.
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
_DEEPEST = 16  # samplers: one may make another object at each question
RANK = "DistributedSampler.rank"  # the name of the rank in ``settings``


class Samplers:
    """The sampler of a loader and those inside it, from the sampler of batches to that of indices.

    The source of the order of a subclass, or of a user's class, is unknown, so only its batches can be compared. The
    batches of all samplers are compared: a known sampler may also have been changed, or share its generator.
    """

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self._all = [sampler]
        while hasattr(self._all[-1], "sampler") and len(self._all) < _DEEPEST:
            inner = self._all[-1].sampler
            if any(inner is outer for outer in self._all):  # trainers look for set_epoch at ``batch_sampler.sampler``
                break
            self._all.append(inner)
        *wrappers, leaf = self._all
        self.known = type(leaf) in KNOWN and all(type(wrapper) is BatchSampler for wrapper in wrappers)
        found = [getattr(one, "generator", None) for one in reversed(self._all)]
        self.generators = [generator for generator in found if isinstance(generator, torch.Generator)]
        self._ranks = {"rank": 0, "world size": 1}

    @property
    def batches(self) -> int | None:
        """The number of batches of an epoch, or None if the sampler has no len()."""
        return length(self.sampler)

    @property
    def follows_from_arguments(self) -> bool:
        """Whether the order depends only on arguments of the samplers, which ``settings`` has, and on ``set_epoch``."""
        return self.known and not self.sources

    @property
    def sources(self) -> list[Source]:
        """The generators that the order may come from."""
        if not self.known:
            return [*self.generators, None]
        return [] if type(self._all[-1]) in WITHOUT_GENERATOR else [*self.generators[:1]] or [None]

    @property
    def may_hide_state(self) -> bool:
        """Whether the order may depend on something that is not saved and restored."""
        own = [one for one in self._all if type(one) not in (*KNOWN, BatchSampler)]
        return any(not (_is_stateful(one) or hasattr(one, "set_epoch") or _has_generator(one)) for one in own)

    @property
    def name(self) -> str:
        """The name of the sampler in errors."""
        return type(self._all[-1] if self.known else next(o for o in self._all if type(o) is not BatchSampler)).__name__

    @property
    def why_another_order(self) -> str:
        """The message for a sampler that gives another order than in the saved run."""
        if self.known:
            return (
                "the sampler gives another order than in the run that was saved: it was told another epoch or made "
                "with other arguments, or other code drew from its generator during the epoch"
            )
        return (
            "the sampler gives another order than in the run that was saved: the order depends on something that is "
            "not in the state; add state_dict and load_state_dict to the sampler"
        )

    def settings(self) -> dict[str, Any]:
        """Return the values that must be equal for an equal order: classes, and arguments of torch's samplers."""
        found: dict[str, Any] = {"sampler": " of ".join(type(one).__qualname__ for one in self._all)}
        found["generator"] = "of its own" if self.generators else "that is torch's"
        if not self.follows_from_arguments:  # the ranks of a run may have different generators
            found |= self._ranks_now()
        for one in self._all:
            values = ((name, getattr(one, name, None)) for name in SETTINGS)
            found |= {f"{type(one).__qualname__}.{name}": value for name, value in values if type(value) in (int, bool)}
        for one in self._all:
            ranges = ((name, length(getattr(one, name, None))) for name in ("data_source", "dataset"))
            found |= {f"{type(one).__qualname__}.{name}": count for name, count in ranges if count is not None}
        leaf = self._all[-1]
        chosen = leaf if isinstance(leaf, LISTS) else getattr(leaf, "weights", getattr(leaf, "indices", None))
        return found | {"indices or weights": _checksum(chosen)}

    def _ranks_now(self) -> dict[str, int]:
        """Return the rank, and the number of ranks, in torch.distributed. After that has ended, they are the last."""
        if found := ranks_of_group():
            self._ranks = {"rank": found[0], "world size": found[1]}
        return self._ranks

    @property
    def done_with(self) -> tuple[str, ...]:
        """The settings that the sampler does not use again after an epoch has begun. For an unknown sampler these are
        all settings: only its batches can be compared.
        """
        if not self.known:
            return ("batches", *self.settings())
        return ("indices or weights",) if type(self._all[-1]) is WeightedRandomSampler else ()

    def save(self) -> list[Any]:
        """Return the state of each sampler that has one."""
        # Copies: a sampler may go on to change the object that its state_dict returned.
        return [copy.deepcopy(one.state_dict()) if _is_stateful(one) else None for one in self._all]

    def restore(self, states: list[Any]) -> None:
        """Restore the states that ``save`` returned."""
        for one, state in zip(self._all, states, strict=True):
            if _is_stateful(one):
                one.load_state_dict(copy.deepcopy(state))

    def epochs(self) -> list[int | None]:
        """Return the epoch that each sampler was told."""
        found = [getattr(one, "epoch", None) for one in self._all]
        return [epoch if type(epoch) is int and hasattr(one, "set_epoch") else None for one, epoch in self._zip(found)]

    def set_epochs(self, epochs: list[int | None]) -> None:
        """Tell each sampler the epoch that ``epochs`` returned."""
        for one, epoch in self._zip(epochs):
            if epoch is not None and hasattr(one, "set_epoch"):
                one.set_epoch(epoch)

    def told_other_than(self, epochs: list[int | None]) -> bool:
        """Return whether a known sampler was told another epoch, in which its order differs."""
        shuffled = getattr(self._all[-1], "shuffle", True)
        return self.known and shuffled and self.epochs() != epochs

    def _zip(self, values: list[Any]) -> Iterable[tuple[Any, Any]]:
        return zip(self._all, values, strict=True)

    def __len__(self) -> int:
        return len(self._all)


def length(value: Any) -> int | None:
    """Return len(value), or None if it has none."""
    try:
        return len(value)
    except (TypeError, NotImplementedError):
        return None


def _is_stateful(sampler: Any) -> bool:
    return hasattr(sampler, "state_dict") and hasattr(sampler, "load_state_dict")


def _has_generator(sampler: Any) -> bool:
    return isinstance(getattr(sampler, "generator", None), torch.Generator)


def _checksum(chosen: Any) -> int | None:
    """Return a checksum of the indices or weights of a sampler, or None if it has none."""
    if isinstance(chosen, range):
        chosen = np.arange(chosen.start, chosen.stop, chosen.step)
    if isinstance(chosen, torch.Tensor):  # on any device, of any dtype, with or without gradients
        return zlib.crc32(chosen.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    if isinstance(chosen, np.ndarray):
        return zlib.crc32(repr(chosen.tolist()).encode() if chosen.dtype.hasobject else chosen.tobytes())
    try:
        return zlib.crc32(array("q", chosen)) if isinstance(chosen, (list, tuple)) else None
    except (TypeError, ValueError, OverflowError):  # not integers
        return zlib.crc32(repr(chosen).encode())


def digest(batch: Any, crc: int) -> int:
    """Return a checksum of a sampler's batch, which continues that of earlier batches."""
    try:
        numbers = batch if isinstance(batch, (list, tuple)) else _listed(batch)
        data = struct.pack(f"<{len(numbers)}q", *numbers)  # faster than an array
    except (TypeError, struct.error):  # not integers
        data = repr(batch).encode()
    return zlib.crc32(data, zlib.crc32(len(data).to_bytes(8, "little"), crc))


def copied(batch: Any) -> Any:
    """Return a copy of a sampler's batch."""
    if type(batch) is list and set(map(type, batch)) <= {int}:
        return batch.copy()
    fresh = plain(batch)
    if fresh is batch and type(batch) is not int:
        with contextlib.suppress(Exception):  # keys that cannot be copied are used themselves
            return copy.deepcopy(batch)
    return fresh


def own(batch: Any) -> Any:
    """Copy lists, arrays and tensors, which the sampler may reuse while the batch waits in a worker's queue."""
    if type(batch) is torch.Tensor:
        return batch.clone()
    return batch.copy() if type(batch) in (list, np.ndarray) else batch


def plain(batch: Any) -> Any:
    """Return a sampler's batch as an integer or a list of integers; unchanged if it is something else."""
    try:
        return (
            _listed(batch) if getattr(batch, "ndim", 0) or isinstance(batch, (list, tuple)) else operator.index(batch)
        )
    except TypeError:
        return batch


def _listed(batch: Any) -> list[int]:
    """Return a batch as a list of integers. Raises TypeError if it is something else."""
    single = isinstance(batch, int) or getattr(batch, "ndim", None) == 0
    return [operator.index(batch)] if single else list(map(operator.index, batch))
