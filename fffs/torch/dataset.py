"""Data sets that take lists of indices and read them as one batch: Dataset, Subset, ConcatDataset."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import operator
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch.utils.data

import fffs
from fffs.base.numbers import as_number
from fffs.base.paths import PathLike
from fffs.base.text import plural
from fffs.errors import ClosedError, RecordIndexError, UsageError
from fffs.native import lib
from fffs.reader import FileReader
from fffs.torch.batch import Batch, Records, seed_generators, share_threads, stacks_arrays
from fffs.torch.disk import suit_memory
from fffs.torch.indices import listed, only_sample, several
from fffs.torch.registry import ReaderRegistry


def _function(owner: Any, name: str) -> Any:
    """Return the function of a method, or None: a function may be set on the object itself."""
    return getattr(getattr(owner, name), "__func__", None)


def _batch_of(dataset: Dataset, indices: list[int]) -> Any:
    """Return a batch of a data set, as a DataLoader gets it."""
    if not getattr(dataset, "has_own_batches", False):
        return dataset[indices]
    get: Any = dataset.__getitems__
    return [dataset[index] for index in indices] if get is None else get(indices)


def _sample_of(dataset: Dataset, index: int) -> Any:
    """Return a sample: of a batch of one, unless batches of the data set may be something else than samples."""
    if getattr(dataset, "reaches_own_batches", False):
        return dataset[index]
    return only_sample(dataset[[index]], dataset)


class Dataset(torch.utils.data.Dataset[Any], ReaderRegistry):
    """A map-style data set of records, indexed with lists.

    ``ds[[3, 1, 4]]`` reads three records in one batch and returns the samples that ``process`` makes of them; ``ds[3]``
    returns a single sample, ``ds[2:5]`` a list. Unless ``process`` is overridden, samples are the bytes of records: 1-D
    writable uint8 arrays that belong to the caller.

    Either override ``process``::

        class Images(fffs.torch.Dataset):
            def process(self, indices, data):
                return [decode(record) for record in data]

    or use your own readers, and override ``__len__`` and ``__getitem__``, which then gets lists of indices::

        class Pairs(fffs.torch.Dataset):
            def __init__(self, left, right):
                self.left, self.right = fffs.FileReader(left), fffs.FileReader(right)

            def __len__(self):
                return self.left.n

            def __getitem__(self, indices):
                return list(zip(self.left.read(indices), self.right.read(indices)))

    A DataLoader, ours or torch's, asks for whole batches (``__getitems__``), as ``Subset`` and ``ConcatDataset`` do. An
    own ``__getitem__`` gets an integer only for ``ds[3]``, also in a loop over the data set, and from torch's
    ConcatDataset; ``super().__getitem__(3)`` is the sample of the base class. A data set may be forked and pickled; an
    unpickled reader opens its files again. It may be used from any thread if ``process`` may.

    Examples:
        >>> records = fffs.torch.Dataset("train.ffr")
        >>> [bytes(record) for record in records[[2, 0]]]
        [b'three', b'one']

    """

    def __init__(
        self,
        fnames: PathLike | list[Any] | tuple[Any, ...],
        check_data: bool = True,
        *,
        cache: PathLike | None = None,
        cache_size: str | int | None = None,
    ) -> None:
        """fnames: anything that ``fffs.open`` opens: a record file of any format, a folder of them, a list, or a
        granular data set, whose samples are rows. check_data: verify checksums at every read. cache, cache_size: as for
        ``fffs.open``; what is read of objects in stores is kept also if neither these nor the environment name a
        folder, in that of the user.
        """
        self.fnames = fnames
        self.reader = fffs.open(fnames, check_data=check_data, cache=cache, cache_size=cache_size)
        if isinstance(self.reader, FileReader):
            suit_memory(self.reader)

    def __len__(self) -> int:
        return self.reader.n

    def __getitem__(self, indices: Any) -> Any:
        """Return a sample for an integer, a list of samples for a list, tuple, range, slice or integer array.

        Warns if ``process`` returned a list with more or fewer samples than records: a batch has as many then.

        Raises:
            TypeError: ``indices`` is something else. UsageError: ``process`` did not return one sample for an integer.
                Also as ``FileReader.read``.

        """
        numbers = several(indices, len(self))
        if numbers is None:
            # Not that of a subclass, which may have called this: it would add what it adds twice.
            return only_sample(Dataset.__getitem__(self, [operator.index(indices)]), self)
        share_threads()
        samples = self.process(numbers, self.reader.read(numbers))
        if type(samples) is list and len(samples) != len(numbers):  # anything else is for the user's own collate_fn
            warnings.warn(
                f"{type(self).__name__}.process returned {plural(len(samples), 'sample')} for "
                f"{plural(len(numbers), 'record')}: the batch has as many",
                stacklevel=2,
            )
        return samples

    def __getitems__(self, indices: Sequence[int]) -> Any:
        """Return a batch, for a DataLoader."""
        numbers = list(indices)
        if not isinstance(indices, Batch):
            return self[numbers]
        for batch in indices.upcoming[: lib.fffs_remote_depth()]:
            self.announce_safely(memoryview(batch).cast("q").tolist())
        if indices.joined and stacks_arrays() and (records := self.raw(numbers)) is not None:
            share_threads()
            return records
        if not indices.seeded:
            seed_generators(indices.seed)
        samples = self[numbers]
        return only_sample(samples, self) if indices.single else samples

    @property
    def has_own_batches(self) -> bool:
        """Whether ``__getitems__`` is overridden."""
        return _function(self, "__getitems__") is not Dataset.__getitems__

    @property
    def reaches_own_batches(self) -> bool:
        """The same, of this data set or one that it takes its samples from."""
        return self.has_own_batches

    def process(self, indices: list[int], data: list[Any]) -> Any:
        """Make samples from a batch of records. To be overridden; by default, samples are the records.

        Args:
            indices: the number of each record.
            data: the bytes of each record: 1-D writable uint8 arrays that share one buffer.

        Returns:
            One sample for each record, for a DataLoader to collate. A list of another length gives a warning.

        """
        return data

    def announce(self, indices: list[int]) -> None:
        """Start reading the records of a batch, and return at once. Our DataLoader calls this for batches that will be
        asked for: for objects in stores, and without workers also for files on disks. If ``__getitem__`` uses your own
        readers, override this, too, with ``FileReader.prefetch``.
        """
        if type(self).__getitem__ is Dataset.__getitem__ and isinstance(self.reader, FileReader):
            self.reader.prefetch(indices)

    def announce_safely(self, indices: list[int]) -> None:
        """Announce a batch; reading it reports errors."""
        with contextlib.suppress(Exception):
            self.announce(indices)

    @property
    def is_remote(self) -> bool:
        """Whether a reader among the attributes reads objects in stores."""
        for reader in self.ffreaders():
            with contextlib.suppress(ClosedError):  # workers may open others
                if reader.store.is_remote:
                    return True
        return False

    def learn_lengths(self) -> None:
        """Learn whether all records have one length, for workers that are forked.

        Readers that workers are to open, as a property or ``worker_init_fn`` does, stay closed here.
        """
        reader = vars(self).get("reader")
        if isinstance(reader, FileReader):
            with contextlib.suppress(ClosedError):  # workers may open others
                self.raw([])

    def raw(self, indices: list[int]) -> Records | None:
        """Return the unread records of a batch, for our DataLoader; None if samples are not the records themselves."""
        if (
            _function(self, "process") is not Dataset.process
            or type(self).__getitem__ is not Dataset.__getitem__
            or self.has_own_batches
        ):
            return None
        # Other readers decode records, and so may a subclass.
        if not isinstance(self.reader, FileReader) or _function(self.reader, "read") is not FileReader.read:
            return None
        return Records(self.reader, indices, self.reader.store.index.have_one_length)

    def __add__(self, other: Any) -> ConcatDataset:  # type: ignore[override]
        return ConcatDataset([self, other])


class Subset(Dataset):
    """The samples of a data set with the given indices, in their order.

    Examples:
        >>> ends = fffs.torch.Subset(fffs.torch.Dataset("train.ffr"), [0, 2])
        >>> [bytes(record) for record in ends[[1, 0]]]
        [b'three', b'one']

    """

    def __init__(self, dataset: Dataset, indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, indices

    def __len__(self) -> int:
        return len(self.indices)

    def _of_dataset(self, indices: Iterable[int]) -> list[int]:
        try:
            return [as_number(self.indices[as_number(index)]) for index in indices]
        except IndexError:
            raise RecordIndexError(f"an index is out of range: this subset has {len(self)} samples") from None

    def __getitem__(self, indices: Any) -> Any:
        """As in the data set, with indices into the subset."""
        numbers = several(indices, len(self))
        if numbers is None:
            return _sample_of(self.dataset, *self._of_dataset([operator.index(indices)]))
        return _batch_of(self.dataset, self._of_dataset(numbers))

    @property
    def reaches_own_batches(self) -> bool:
        """As in the base class."""
        return self.has_own_batches or getattr(self.dataset, "reaches_own_batches", False)

    def announce(self, indices: list[int]) -> None:
        """As in the data set."""
        if type(self).__getitem__ is Subset.__getitem__:
            self.dataset.announce(self._of_dataset(indices))

    def learn_lengths(self) -> None:
        """As in the data set."""
        if type(self) is Subset:
            self.dataset.learn_lengths()

    def raw(self, indices: list[int]) -> Records | None:
        """As in the data set."""
        return self.dataset.raw(self._of_dataset(indices)) if type(self) is Subset else None


class ConcatDataset(Dataset):
    """Several data sets joined in order, as by ``a + b``.

    Examples:
        >>> both = fffs.torch.Dataset("train.ffr") + fffs.torch.Dataset("train.bag")
        >>> len(both), bytes(both[4])
        (6, b'two')

    """

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
        """Return (number of the data set, index in it)."""
        number = as_number(index)
        if number < 0:
            number += len(self)
        if not 0 <= number < len(self):
            known = f"indices are 0 to {len(self) - 1}" if len(self) else "there are none"
            raise RecordIndexError(f"there is no sample {index}: {known}")
        k = bisect.bisect_right(self.cumulative_sizes, number)
        return k, number - (self.cumulative_sizes[k - 1] if k else 0)

    def _by_dataset(self, indices: list[Any]) -> dict[int, list[tuple[int, int]]]:
        """Return for each data set that has any of the indices: (position in ``indices``, index in the data set)."""
        wanted: dict[int, list[tuple[int, int]]] = {}
        for place, index in enumerate(indices):
            k, number = self._locate(index)
            wanted.setdefault(k, []).append((place, number))
        return wanted

    def announce(self, indices: list[int]) -> None:
        """As in the data sets."""
        if type(self).__getitem__ is ConcatDataset.__getitem__:
            for k, pairs in self._by_dataset(indices).items():
                self.datasets[k].announce([number for _, number in pairs])

    def __getitem__(self, indices: Any) -> Any:
        """As in a data set, with indices numbered through. Each data set is read in one batch."""
        numbers = several(indices, len(self))
        if numbers is None:
            k, number = self._locate(indices)
            return _sample_of(self.datasets[k], number)
        samples: list[Any] = [None] * len(numbers)
        for k, pairs in sorted(self._by_dataset(numbers).items()):
            found = _batch_of(self.datasets[k], [number for _, number in pairs])
            for (place, _), sample in zip(pairs, listed(found, len(pairs), self.datasets[k]), strict=True):
                samples[place] = sample
        return samples

    @property
    def reaches_own_batches(self) -> bool:
        """As in the base class."""
        return self.has_own_batches or any(dataset.reaches_own_batches for dataset in self.datasets)

    def ffreaders(self) -> list[FileReader]:
        """Return the readers of all data sets."""
        return self._readers_among(list(self.datasets))
