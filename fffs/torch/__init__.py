"""Record files as torch data sets, read in whole verified batches. Needs ``pip install 'fffs[torch]'``.

``Dataset`` takes lists of indices; ``DataLoader`` is torch's, with batches in reused shared memory, ``set_step`` and
exact resumption; ``PackedFolder`` is an image folder in one file. torch's own ``DataLoader`` reads whole batches of
these data sets, too.
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401 - imported first, so that a missing torch gives the message below
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("fffs.torch needs torch: pip install 'fffs[torch]'", name=error.name) from error

from fffs.torch.batch import RecordBatch
from fffs.torch.dataloader import DataLoader
from fffs.torch.dataset import ConcatDataset, Dataset, Subset
from fffs.torch.elastic import ElasticBatchSampler
from fffs.torch.folder import PackedFolder
from fffs.torch.registry import ReaderRegistry

__all__ = [
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "ElasticBatchSampler",
    "PackedFolder",
    "ReaderRegistry",
    "RecordBatch",
    "Subset",
]
