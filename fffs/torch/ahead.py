"""Loaders without workers: the next batch is announced, so that the disk works while the program computes."""

from __future__ import annotations

import contextlib
import itertools
import resource
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

from fffs.errors import FffsError
from fffs.torch.dataset import Dataset

# They draw all of an epoch at its begin: asking them for a batch early changes nothing. Others may draw numbers in
# between that somebody else uses too, or choose by what became of the batch before.
KNOWN = (SequentialSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler)


def draws_at_once(sampler: Any) -> bool:
    """Whether a sampler, of batches or of indices, is known to have its order before the first one is asked for."""
    while type(sampler) is BatchSampler:
        sampler = sampler.sampler
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    return type(sampler) in KNOWN


def announced(batches: Iterator[Any], dataset: Dataset) -> Iterator[Any]:
    """The batches, of indices; before each of them the one behind it is announced to the data set.

    Only as long as anything comes from disks, which the kernel tells for the process: in memory it would be in vain.
    """
    before = _from_disks()
    for batch, following in itertools.pairwise(itertools.chain(batches, [None])):
        now = _from_disks()
        if now != before and isinstance(following, list):
            with contextlib.suppress(FffsError):  # whoever reads it will be told
                dataset.prefetch(following)
        before = now
        yield batch


def _from_disks() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_inblock
