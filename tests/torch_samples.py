"""Record files and data sets for the tests of ``fffs.torch``, in a module that spawned workers can import."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from builders import record_file

import fffs
import fffs.torch

# torch warns if there are more workers than cores, and if memory cannot be pinned.
WARNINGS = ("ignore:This DataLoader will create", "ignore:.*no accelerator is found")


def content(k: int, length: int | None = 64) -> bytes:
    """Return the content of record k; length None: lengths differ."""
    length = k * 37 % 300 if length is None else length
    return bytes((k * 7 + i * 31) % 256 for i in range(4)) * (length // 4) + bytes(length % 4)


def write(path: Path, n: int, length: int | None = 64) -> Path:
    """Write a record file of n records."""
    path.write_bytes(record_file([content(k, length) for k in range(n)]))
    return path


class Tagged(fffs.torch.Dataset):
    """Samples are (number, first bytes)."""

    def process(self, indices: list[int], data: list[Any]) -> list[Any]:
        return [(k, bytes_[:4].astype(np.int64)) for k, bytes_ in zip(indices, data, strict=True)]


class Own(fffs.torch.Dataset):
    """The other style of data set: its own reader, and lists of indices."""

    def __init__(self, path: Path) -> None:
        self.mine = fffs.FileReader(path)

    def __len__(self) -> int:
        return self.mine.n

    def __getitem__(self, indices: list[int]) -> list[Any]:
        assert isinstance(indices, list)
        return [(k, torch.from_numpy(record)) for k, record in zip(indices, self.mine.read(indices), strict=True)]


class Noisy(Tagged):
    """Samples are (number, random numbers of each kind)."""

    def process(self, indices: list[int], data: list[Any]) -> list[Any]:
        return [(k, torch.rand(2), np.random.rand(2), random.random()) for k in indices]


def mixed(batch: list[Any]) -> Any:
    """Collate with random numbers, as MixUp and CutMix do."""
    return [torch.utils.data.default_collate(batch), torch.rand(1), np.random.rand(1), random.random()]


class Numbers(torch.utils.data.Dataset[int]):
    """A data set without fffs."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        return index


class Failing(Tagged):
    """Record 5 cannot be processed."""

    def process(self, indices: list[int], data: list[Any]) -> list[Any]:
        if 5 in indices:
            raise ZeroDivisionError("record 5 is odd")
        return super().process(indices, data)


class Ending(Tagged):
    """Record 30 raises StopIteration, as ``next`` of an empty iterator does."""

    def process(self, indices: list[int], data: list[Any]) -> list[Any]:
        return end_at_30(super().process(indices, data))


class EndingNumbers(Numbers):
    """The same without fffs."""

    def __init__(self) -> None:
        super().__init__(50)

    def __getitem__(self, index: int) -> int:
        return index if index != 30 else next(iter(()))


def end_at_30(batch: list[Any]) -> list[Any]:
    """Return a batch. Raises StopIteration if sample 30 is in it."""
    return batch if all(k != 30 for k, _ in batch) else next(iter(()))


class BatchCounter(Tagged):
    """Samples are the sizes of the batches that the data set was asked for."""

    def process(self, indices: list[int], data: list[Any]) -> list[Any]:
        return [len(indices)] * len(indices)


def plain(batches: Iterable[Any]) -> list[Any]:
    """Return batches as nested lists, which can be compared."""
    return [_plain(batch) for batch in batches]


def begun(loader: fffs.torch.DataLoader, at: int = 3, epochs: int = 1) -> tuple[Any, Any]:
    """Return an iterator in the middle of an epoch, and the state."""
    for _ in range(epochs - 1):
        plain(loader)
    batches = iter(loader)
    for _ in range(at):
        next(batches)
    return batches, loader.state_dict()


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, (list, tuple, fffs.torch.RecordBatch)):
        return [_plain(item) for item in value]
    return value
