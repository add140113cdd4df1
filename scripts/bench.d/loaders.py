"""The loaders that ``train`` compares. Each is made in the training process, and gives batches of whole records."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils.data

import fffs.torch

SHARD = 1000  # files in each tar file of WebDataset
Batches = list[list[int]]


@dataclass(frozen=True)
class Data:
    """The same records in all forms."""

    folder: Path  # has one file per record, listed in ``names``
    names: tuple[str, ...]
    pack: Path
    shards: tuple[Path, ...] = ()
    mounted: Path | None = None


def join(samples: list[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a batch as one tensor and the lengths. torch's loader is fastest with few tensors."""
    lengths = torch.tensor([len(sample) for sample in samples])
    size = int(lengths.sum())
    joined = torch.from_numpy(np.concatenate(samples))
    if torch.utils.data.get_worker_info() is None:
        return joined, lengths
    shared = torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage._new_shared(size))
    return shared.copy_(joined), lengths


class Files(torch.utils.data.Dataset[np.ndarray]):
    """One file per sample, read as fast as Python can."""

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        self._folder, self._names = str(folder), names

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> np.ndarray:
        fd = os.open(f"{self._folder}/{self._names[index]}", os.O_RDONLY)
        try:
            data = np.empty(os.fstat(fd).st_size, np.uint8)
            if os.readv(fd, [data]) != len(data):
                raise OSError("short read")
            return data
        finally:
            os.close(fd)


def _workers(count: int) -> dict[str, Any]:
    # "fork" is the default of torch, but not in a process that was spawned itself.
    return {"num_workers": count, "persistent_workers": True, "multiprocessing_context": "fork"}


def _stock(dataset: Any, batches: Batches, workers: int) -> Iterable[Any]:
    return torch.utils.data.DataLoader(dataset, batch_sampler=batches, collate_fn=join, **_workers(workers))


def files(data: Data, batches: Batches, workers: int) -> Iterable[Any]:
    return _stock(Files(data.folder, data.names), batches, workers)


def mount(data: Data, batches: Batches, workers: int) -> Iterable[Any]:
    assert data.mounted is not None
    return _stock(Files(data.mounted, data.names), batches, workers)


def ours(data: Data, batches: Batches, workers: int) -> Iterable[Any]:
    dataset = fffs.torch.Dataset(data.pack)
    return fffs.torch.DataLoader(dataset, batch_sampler=batches, **_workers(workers))


def ours_in_torchs_loader(data: Data, batches: Batches, workers: int) -> Iterable[Any]:
    return _stock(fffs.torch.Dataset(data.pack), batches, workers)


def ffrecord(data: Data, batches: Batches, workers: int) -> Iterable[Any]:
    from ffrecord.torch import DataLoader, Dataset

    class Raw(Dataset):
        def process(self, indices: list[int], records: list[Any]) -> list[Any]:
            return records

    return DataLoader(
        Raw(str(data.pack)), batch_sampler=batches, num_workers=workers, collate_fn=join, persistent_workers=True
    )


def webdataset(data: Data, batches: Batches, workers: int) -> Iterable[Any]:
    """WebDataset has a random order of its own: random shards, and samples shuffled in a buffer of 1,000."""
    import webdataset as wds

    shards = [str(path) for path in data.shards]
    each = max(len(batches) // workers, 1)
    dataset = wds.WebDataset(shards, resampled=True, shardshuffle=False).shuffle(1000)
    arrays = dataset.map(lambda sample: np.frombuffer(bytearray(sample["bin"]), np.uint8))
    batched = arrays.batched(len(batches[0]), collation_fn=join).with_epoch(each)
    return torch.utils.data.DataLoader(batched, batch_size=None, **_workers(workers))


LOADERS: dict[str, Callable[[Data, Batches, int], Iterable[Any]]] = {
    "fffs": ours,
    "fffs, torch's loader": ours_in_torchs_loader,
    "small files": files,
    "mount": mount,
    "WebDataset": webdataset,
    "ffrecord": ffrecord,
}


def make_shards(folder: Path, data: Data) -> None:
    """Write the files as shards of WebDataset."""
    folder.mkdir()
    for k in range(0, len(data.names), SHARD):
        with tarfile.open(folder / f"{k:08}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for i, name in enumerate(data.names[k : k + SHARD], k):
                tar.add(data.folder / name, f"{i:08}.bin")


def consume(batch: Any) -> int:
    """Read every page of a batch. Returns its number of records."""
    if isinstance(batch, fffs.torch.RecordBatch):
        count, joined = len(batch), batch.data
    else:
        joined, lengths = batch
        count = len(lengths)
    joined[::4096].sum()
    return count
