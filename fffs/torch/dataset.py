"""Data sets that take lists of indices and read them as one batch: Dataset, Subset, ConcatDataset."""

from __future__ import annotations

import bisect
import itertools
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch.utils.data

import fffs
from fffs.base.paths import PathLike
from fffs.errors import RecordIndexError, UsageError
from fffs.reader import FileReader
from fffs.torch.batch import Batch, Records, random_numbers, share_threads
from fffs.torch.disk import suit_memory


def several(indices: Any, count: int) -> list[Any] | None:
    """What a data set of ``count`` samples is indexed with, as a list; None when it is a single integer.

    Raises:
        TypeError: it is neither.

    """
    if isinstance(indices, slice):
        return list(range(*indices.indices(count)))
    if isinstance(indices, (np.ndarray, torch.Tensor)) and indices.ndim:
        listed: list[Any] = indices.tolist()
        return listed
    if isinstance(indices, Iterable) and not isinstance(indices, (str, bytes, torch.Tensor, np.ndarray)):
        return list(indices)
    try:
        operator.index(indices)
    except TypeError:
        raise TypeError(f"indices must be a list of integers, or one, not {type(indices).__name__}") from None
    return None


class ReaderRegistry:
    """An object that knows the FileReaders among its attributes."""

    def ffreaders(self) -> list[FileReader]:
        """The readers among the attributes, then those of other registries among them."""
        values = list(vars(self).values())
        readers = [value for value in values if isinstance(value, FileReader)]
        for value in values:
            if isinstance(value, ReaderRegistry):
                readers += value.ffreaders()
        return readers


class Dataset(torch.utils.data.Dataset[Any], ReaderRegistry):
    """A map-style data set of records, indexed with lists.

    ``ds[[3, 1, 4]]`` reads three records in one batch and gives what ``process`` makes of them; ``ds[3]`` gives a
    single sample, ``ds[2:5]`` a list. Without a ``process`` of your own, samples are the records' bytes: 1-D writable
    uint8 arrays that belong to the caller.

    Either override ``process``::

        class Images(fffs.torch.Dataset):
            def process(self, indices, data):
                return [decode(record) for record in data]

    or have readers of your own, and override ``__getitem__``, which then gets lists of indices, and ``__len__``::

        class Pairs(fffs.torch.Dataset):
            def __init__(self, left, right):
                self.left, self.right = fffs.FileReader(left), fffs.FileReader(right)

            def __len__(self):
                return self.left.n

            def __getitem__(self, indices):
                return list(zip(self.left.read(indices), self.right.read(indices)))

    A DataLoader, ours or torch's, asks for whole batches (``__getitems__``). May be forked and pickled: a pickled
    reader opens its files anew. May be used from any thread if ``process`` may.
    """

    def __init__(self, fnames: PathLike | list[Any] | tuple[Any, ...], check_data: bool = True) -> None:
        """fnames: anything that ``fffs.open`` opens: a record file of any format, a folder of them, a list, or a
        granular data set, whose samples are rows. check_data: compare checksums at every read.
        """
        self.fnames = fnames
        self.reader = fffs.open(fnames, check_data=check_data)
        if isinstance(self.reader, FileReader):
            suit_memory(self.reader)

    def __len__(self) -> int:
        return self.reader.n

    def __getitem__(self, indices: Any) -> Any:
        """One sample for an integer, a list of samples for a list, tuple, range, slice or integer array.

        Raises:
            TypeError: something else. And what ``FileReader.read`` raises.

        """
        numbers = several(indices, len(self))
        if numbers is None:
            return self[[operator.index(indices)]][0]
        share_threads()
        return self.process(numbers, self.reader.read(numbers))

    def __getitems__(self, indices: Sequence[int]) -> Any:
        """A batch, for a DataLoader."""
        numbers = list(indices)
        if not isinstance(indices, Batch):
            return self[numbers]
        if indices.joined and (records := self.raw(numbers)) is not None:
            share_threads()
            return records
        with random_numbers(indices.seed):
            return self[numbers]

    def process(self, indices: list[int], data: list[Any]) -> Any:
        """What a batch of records is made into; override it.

        Args:
            indices: the number of each record.
            data: the bytes of each: 1-D writable uint8 arrays that share one buffer.

        Returns:
            One sample for each: what a DataLoader collates.

        """
        return data

    def announce(self, indices: list[int]) -> None:
        """Let what a batch needs begin to come from the disk, and return at once. A DataLoader of ours without workers
        tells what comes next; override it, with ``FileReader.prefetch``, where ``__getitem__`` has readers of your own.
        """
        if type(self).__getitem__ is Dataset.__getitem__ and isinstance(self.reader, FileReader):
            self.reader.prefetch(indices)

    def raw(self, indices: list[int]) -> Records | None:
        """The records of a batch when nobody's code makes something else of them: for our DataLoader."""
        kind = type(self)
        if kind.process is not Dataset.process or kind.__getitem__ is not Dataset.__getitem__:
            return None
        if not isinstance(self.reader, FileReader):  # its records are decoded
            return None
        if not hasattr(self, "_one_length"):
            lengths = self.reader.lengths(np.arange(len(self)))
            self._one_length = bool(len(lengths)) and int(lengths.min()) == int(lengths.max())
        return Records(self.reader, indices, self._one_length)

    def __add__(self, other: Any) -> ConcatDataset:  # type: ignore[override]
        return ConcatDataset([self, other])


class Subset(Dataset):
    """The samples of a data set that a sequence of indices names, in that order."""

    def __init__(self, dataset: Dataset, indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, indices

    def __len__(self) -> int:
        return len(self.indices)

    def _of_dataset(self, indices: Iterable[int]) -> list[int]:
        try:
            return [int(self.indices[index]) for index in indices]
        except IndexError:
            raise RecordIndexError(f"there are {len(self)} samples in this subset, and no others") from None

    def __getitem__(self, indices: Any) -> Any:
        """As the data set's, counting in the subset."""
        numbers = several(indices, len(self))
        if numbers is None:
            return self[[operator.index(indices)]][0]
        return self.dataset[self._of_dataset(numbers)]

    def announce(self, indices: list[int]) -> None:
        """As the data set's."""
        if type(self).__getitem__ is Subset.__getitem__:
            self.dataset.announce(self._of_dataset(indices))

    def raw(self, indices: list[int]) -> Records | None:
        """As the data set's."""
        return self.dataset.raw(self._of_dataset(indices)) if type(self) is Subset else None


class ConcatDataset(Dataset):
    """Several data sets, one after another; ``a + b`` makes one, too."""

    def __init__(self, datasets: Iterable[Dataset]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise UsageError("ConcatDataset needs at least one data set")
        for dataset in self.datasets:
            if not isinstance(dataset, Dataset):
                raise TypeError(f"ConcatDataset takes fffs.torch.Dataset objects, not {type(dataset).__name__}")
        self.cumulative_sizes = list(itertools.accumulate(len(dataset) for dataset in self.datasets))

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    def _locate(self, index: int) -> tuple[int, int]:
        """(which data set, number there)."""
        number = operator.index(index)
        if number < 0:
            number += len(self)
        if not 0 <= number < len(self):
            raise RecordIndexError(f"there is no sample {index}: the numbers go from 0 to {len(self) - 1}")
        k = bisect.bisect_right(self.cumulative_sizes, number)
        return k, number - (self.cumulative_sizes[k - 1] if k else 0)

    def _by_dataset(self, indices: list[Any]) -> dict[int, list[tuple[int, int]]]:
        """For each data set that is asked: (place among the indices, number there)."""
        wanted: dict[int, list[tuple[int, int]]] = {}
        for place, index in enumerate(indices):
            k, number = self._locate(index)
            wanted.setdefault(k, []).append((place, number))
        return wanted

    def announce(self, indices: list[int]) -> None:
        """As the data sets'."""
        if type(self).__getitem__ is ConcatDataset.__getitem__:
            for k, pairs in self._by_dataset(indices).items():
                self.datasets[k].announce([number for _, number in pairs])

    def __getitem__(self, indices: Any) -> Any:
        """As a data set's, counting through; each data set is read in one batch."""
        numbers = several(indices, len(self))
        if numbers is None:
            return self[[operator.index(indices)]][0]
        samples: list[Any] = [None] * len(numbers)
        for k, pairs in sorted(self._by_dataset(numbers).items()):
            found = self.datasets[k][[number for _, number in pairs]]
            for (place, _), sample in zip(pairs, found, strict=True):
                samples[place] = sample
        return samples

    def ffreaders(self) -> list[FileReader]:
        """The readers of all data sets."""
        return [reader for dataset in self.datasets for reader in dataset.ffreaders()]
