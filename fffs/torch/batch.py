"""Batches on their way from a sampler to a training loop: requests to workers, and collating samples to tensors."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.random as random_of_numpy
import torch
from torch.utils.data import default_collate, get_worker_info
from torch.utils.data._utils.collate import collate as collate_with  # documented, although in a private module
from torch.utils.data._utils.collate import collate_numpy_array_fn, collate_tensor_fn, default_collate_fn_map

from fffs.native import lib
from fffs.reader import FileReader
from fffs.torch.arena import Arena, Parcel
from fffs.torch.disk import processes


class Batch(list[int]):
    """The indices of a batch, passed from our DataLoader to a Dataset.

    ``seed``: for the random numbers that samples may use. ``joined``: the result goes to ``Collate``, which accepts
    ``Records`` that are not read yet. ``single``: return the one sample itself, not a list of one. ``upcoming``: the
    batches that the same worker gets next, int64 each. ``seeded``: the generators were seeded for it. ``arrives``:
    they are seeded when it arrives in a worker, right before the data set gets it.
    """

    arrives = False

    def __init__(
        self,
        indices: Iterable[int],
        seed: int,
        joined: bool = False,
        single: bool = False,
        upcoming: Sequence[bytes] = (),
        seeded: bool = False,
    ) -> None:
        super().__init__(indices)
        self.seed, self.joined, self.single, self.upcoming, self.seeded = seed, joined, single, upcoming, seeded

    def __reduce__(self) -> tuple[Any, ...]:
        kind = _arrived if self.arrives else Batch
        return kind, (list(self), self.seed, self.joined, self.single, self.upcoming, self.seeded)


def _arrived(*arguments: Any) -> Batch:
    batch = Batch(*arguments)  # copies of it do not arrive
    seed_generators(batch.seed)
    return batch


class Records:
    """Raw records that are not read yet. ``Collate`` reads them, directly into their final memory."""

    def __init__(self, reader: FileReader, indices: list[int], one_length: bool) -> None:
        """one_length: all records of the data set have the same length."""
        self.reader, self.indices, self.one_length = reader, indices, one_length


class RecordBatch:
    """Records of different lengths, adjacent in one tensor.

    A sequence: ``batch[i]`` is record i, a 1-D uint8 tensor that shares the batch's memory. May be pickled.

    Attributes:
        data: uint8[total], the bytes of all records.
        offsets: int64[k + 1], on the CPU: record i is ``data[offsets[i]:offsets[i + 1]]``.

    Examples:
        >>> (batch,) = fffs.torch.DataLoader(fffs.torch.Dataset("train.ffr"), batch_size=3)
        >>> batch.offsets.tolist(), bytes(batch[2].numpy())
        ([0, 3, 6, 11], b'three')

    """

    def __init__(self, data: torch.Tensor, offsets: torch.Tensor) -> None:
        self.data, self.offsets = data, offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> torch.Tensor:
        k = range(len(self))[i]
        return self.data[int(self.offsets[k]) : int(self.offsets[k + 1])]

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (self[k] for k in range(len(self)))

    def pin_memory(self, device: Any = None) -> RecordBatch:
        """Return a copy in pinned memory. ``DataLoader(pin_memory=True)`` calls this. device: ignored."""
        return RecordBatch(self.data.pin_memory(), self.offsets)

    def to(self, *args: Any, **kwargs: Any) -> RecordBatch:
        """Return the batch with its data converted by ``torch.Tensor.to``."""
        return RecordBatch(self.data.to(*args, **kwargs), self.offsets)

    def __reduce__(self) -> tuple[Any, ...]:
        return RecordBatch, (self.data, self.offsets)

    def __repr__(self) -> str:
        return f"<RecordBatch: {len(self)} records, {len(self.data)} bytes>"


class Collate:
    """The ``collate_fn`` of our DataLoader: torch's default, or the user's; in workers, its tensors go into the arena.

    Results are those of torch, except that raw records of different lengths, which torch refuses, become a
    ``RecordBatch``.
    """

    def __init__(self, users: Callable[[Any], Any] | None = None) -> None:
        self.users = users
        self.arena: Arena | None = None
        self.sends = False  # this is the copy of a worker, whose results go to another process

    def __call__(self, batch: Any) -> Any:
        """Return the batch for the training loop, or, in a worker, objects that become it when they are unpickled."""
        worker = get_worker_info()
        parcel = self.arena.take(worker.id) if worker is not None and self.arena is not None else None
        if parcel is None:
            return self._collated(batch, None)
        try:
            result = self._collated(batch, parcel)
        except BaseException:
            parcel.give_back()
            raise
        if parcel.size == 0:
            parcel.give_back()
        return result

    def _collated(self, batch: Any, parcel: Parcel | None) -> Any:
        try:
            return self._collate(batch, parcel)
        except StopIteration as error:  # torch would end the epoch of an iterable data set
            raise RuntimeError("StopIteration was raised by collate_fn") from error

    def _collate(self, batch: Any, parcel: Parcel | None) -> Any:
        if isinstance(batch, Records):
            return _join(batch, parcel, self.sends)
        if self.users is not None:
            result = self.users(batch)
            return result if parcel is None else _move_all(result, parcel)
        if parcel is None:
            return default_collate(batch)
        return collate_with(batch, collate_fn_map=_into(parcel))


def _join(records: Records, parcel: Parcel | None, sent: bool) -> Any:
    """Read records as uint8[k, length], or as a RecordBatch if lengths differ. sent: it goes to another process."""
    if parcel is None:
        buffer, ends = records.reader.read_joined(records.indices)
        if not buffer.size:
            buffer = np.empty(0, np.uint8)
        data = torch.from_numpy(buffer)
        if sent:
            _share(data)
        if _is_matrix(records, buffer.size):
            return data.view(len(records.indices), -1)
        offsets = torch.from_numpy(ends)
        if sent:
            _share(offsets)
        return RecordBatch(data, offsets)
    lengths = records.reader.lengths(records.indices)
    count, total = len(lengths), int(lengths.sum())
    shape = (count, total // count) if _is_matrix(records, total) else (total,)
    tensor, data = parcel.new(torch.uint8, shape)
    ends = records.reader.read_into(records.indices, tensor.numpy())
    return data if len(shape) == 2 else RecordBatch(data, _copy(torch.from_numpy(ends), parcel))


def _share(tensor: Any) -> None:
    """Move a tensor that is sent into shared memory now. Where a thread of torch's queue does it, a lack of memory is
    no exception, and the batch is lost.
    """
    if tensor.numel():
        tensor.share_memory_()


def _is_matrix(records: Records, size: int) -> bool:
    return records.one_length and size > 0


# ---------------------------------------------------------------- tensors into an arena


# Quantized numbers, and those of less than a byte, cannot be copied as numbers; torch may view any tensor as such.
_DTYPES: Final = frozenset(
    dtype
    for bits in (8, 16, 32, 64, 128)
    for kind in ("bool", "bfloat", "int", "uint", "float", "complex")
    if isinstance(dtype := getattr(torch, kind if kind == "bool" else f"{kind}{bits}", None), torch.dtype)
) | {getattr(torch, name) for name in dir(torch) if name.startswith("float8_")}


def _can_move(tensor: Any) -> bool:
    """Return whether a plain copy of the numbers can replace the tensor."""
    return (
        type(tensor) is torch.Tensor
        and tensor.dtype in _DTYPES
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or tensor.is_nested)
    )


def _copy(tensor: Any, parcel: Parcel) -> Any:
    if not _can_move(tensor) or not tensor.is_contiguous():  # a copy would lose its strides, and be larger if expanded
        return tensor
    place, sent = parcel.new(tensor.dtype, tuple(tensor.shape), tensor.stride())
    place.copy_(tensor)
    return sent


def _move_all(value: Any, parcel: Parcel) -> Any:
    """Move the tensors in plain containers to a parcel. torch sends all others in its own way."""
    try:
        return _move(value, parcel)
    except RecursionError:  # a list within itself
        parcel.size = 0  # what was moved is not sent
        return value


def _move(value: Any, parcel: Parcel) -> Any:
    kind = type(value)
    if kind is dict:
        return {key: _move(item, parcel) for key, item in value.items()}
    if kind in (list, tuple):
        return kind(_move(item, parcel) for item in value)
    if isinstance(value, tuple) and hasattr(value, "_fields") and not getattr(value, "__dict__", None):
        return kind(*(_move(item, parcel) for item in value))
    return _copy(value, parcel)


def _into(parcel: Parcel) -> dict[Any, Callable[..., Any]]:
    """Return torch's collate functions, changed to stack tensors in a parcel."""

    def stack(batch: Any, *, collate_fn_map: Any = None) -> Any:
        first = batch[0]
        if not all(map(_can_move, batch)):
            return default_collate(batch)
        if any(tensor.dtype != first.dtype or tensor.shape != first.shape for tensor in batch):
            return _copy(torch.stack(list(batch)), parcel)  # raises when shapes differ
        place, sent = parcel.new(first.dtype, (len(batch), *first.shape))
        torch.stack(list(batch), out=place)
        return sent

    def stack_arrays(batch: Any, *, collate_fn_map: Any = None) -> Any:
        if batch[0].dtype.kind in "SaUO":
            return default_collate(batch)  # raises
        return stack([torch.as_tensor(array) for array in batch])

    def moved(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda batch, *, collate_fn_map=None: _copy(function(batch, collate_fn_map=collate_fn_map), parcel)

    ours = {kind: moved(function) for kind, function in default_collate_fn_map.items()}
    return {**ours, torch.Tensor: stack, np.ndarray: stack_arrays} if stacks_arrays() else ours


def stacks_arrays() -> bool:
    """Return whether tensors and arrays are collated by torch's own functions: programs may put others in their place.

    That for arrays calls that for tensors.
    """
    functions = default_collate_fn_map.get(torch.Tensor), default_collate_fn_map.get(np.ndarray)
    return functions == (collate_tensor_fn, collate_numpy_array_fn)


# ---------------------------------------------------------------- random numbers


class _Level(threading.local):
    """The innermost ``RestoredGenerators`` block of a thread: the states to restore, or an empty list."""

    saved: list[Any] | None = None


_level = _Level()


class RestoredGenerators:
    """A block that restores the global generators at its end if ``seed_generators`` was called in it."""

    def __enter__(self) -> None:
        self._saved: list[Any] = []
        self._outer, _level.saved = _level.saved, self._saved

    def __exit__(self, *_: object) -> None:
        _level.saved = self._outer
        if self._saved:
            random.setstate(self._saved[0])
            random_of_numpy.set_state(self._saved[1])
            torch.set_rng_state(self._saved[2])


def seed_generators(seed: int) -> None:
    """Seed torch's, numpy's and Python's global generators for a batch: its samples, and the function that collates.

    Outside of workers, call this in a ``RestoredGenerators`` block.
    """
    saved = _level.saved
    if saved is not None and not saved:
        saved += [random.getstate(), random_of_numpy.get_state(), torch.get_rng_state()]
    random.seed(seed)
    random_of_numpy.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the accelerators, too


# ---------------------------------------------------------------- in workers

_settled = 0  # the process id of the worker whose number of threads is set


def share_threads() -> None:
    """Limit the reading threads of a worker to its share of the cores, unless FFFS_THREADS is set."""
    global _settled
    worker = get_worker_info()
    if worker is None or _settled == os.getpid():
        return
    _settled = os.getpid()
    if "FFFS_THREADS" not in os.environ:
        readers = worker.num_workers * processes("LOCAL_WORLD_SIZE")
        share = max(1, len(os.sched_getaffinity(0)) // readers)
        lib.fffs_engine_set_threads(min(share, lib.fffs_engine_threads()))
