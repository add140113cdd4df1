"""Arena: reusable shared memory through which the workers of a loader pass their batches to the parent.

torch makes new shared memory for every tensor that leaves a worker: the kernel clears its pages, both processes fault
them in, and its descriptor goes through a socket. An arena is one memory file that exists as long as the workers. It is
divided into regions. A worker takes a free region, writes the tensors of a batch into it, and sends their offsets. In
the parent they become ordinary tensors, and when the last of them is deleted, the region is free again.

A region's memory is allocated when it is first written. The file has no name, so that it disappears with its processes,
and the size of /dev/shm does not limit it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import threading
import weakref
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fffs.base.descriptors import memory_file, pipe

SPAN = 1 << 36  # bytes of the file from one region to the next: the most that a batch may have
STEP = 1 << 21  # regions are mapped in multiples of this
ALIGNMENT = 64  # of tensors in a region

_arenas: weakref.WeakValueDictionary[str, Arena] = weakref.WeakValueDictionary()


class Arena:
    """The memory file. The parent makes it, and its workers get it by fork or pickle.

    May be used from any thread. One worker writes a region. The parent frees it, or the worker if it sends nothing.
    """

    def __init__(self, workers: int, regions: int) -> None:
        """workers: the number of workers. regions: how many batches of each worker may be in use at once."""
        header = -(-workers * regions // mmap.PAGESIZE) * mmap.PAGESIZE
        self._regions, self._header = regions, header
        self._key = secrets.token_hex(8)
        self._fd = memory_file("fffs-arena")
        self._maps: dict[int, mmap.mmap] = {}
        self.usable = True  # whether a worker may take more regions
        os.ftruncate(self._fd, header + workers * regions * SPAN)
        self._busy = mmap.mmap(self._fd, header)  # a byte per region: 0 if it is free
        _arenas[self._key] = self

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)

    def __reduce__(self) -> tuple[Any, ...]:
        return _attach, (DupFd(self._fd), self._key, self._regions, self._header)

    def take(self, worker: int) -> Parcel | None:
        """In a worker, return a parcel in a free region, or None if all regions are in use."""
        first = worker * self._regions
        region = self._busy.find(b"\0", first, first + self._regions) if self.usable else -1
        if region < 0:
            return None
        self._busy[region] = 1
        return Parcel(self, region)

    def give_back(self, region: int) -> None:
        """Mark a region as free."""
        self._busy[region] = 0

    def memory(self, region: int, size: int) -> npt.NDArray[np.uint8]:
        """Return a new array with at least the first ``size`` bytes of a region."""
        mapped = self._maps.get(region)
        if mapped is None or len(mapped) < size:
            mapped = mmap.mmap(self._fd, -(-size // STEP) * STEP, offset=self._header + region * SPAN)
            self._maps[region] = mapped
        return np.frombuffer(mapped, np.uint8)


def _attach(fd: Any, key: str, regions: int, header: int) -> Arena:
    """Open the parent's arena in a worker that was not forked."""
    arena = Arena.__new__(Arena)
    arena._fd, arena._key, arena._regions, arena._header = fd.detach(), key, regions, header
    arena._maps, arena._busy, arena.usable = {}, mmap.mmap(arena._fd, header), True
    return arena


class Parcel:
    """The tensors of one batch, in one region. A worker makes it; unpickled, it becomes a lease of the region."""

    def __init__(self, arena: Arena, region: int) -> None:
        self._arena, self._region = arena, region
        self.size = 0
        self._pickled = False

    def room(self, size: int) -> tuple[npt.NDArray[np.uint8], int]:
        """Allocate uint8[size] for a tensor. Returns it and its offset. Raises MemoryError beyond 64 GiB per batch."""
        start = -(-self.size // ALIGNMENT) * ALIGNMENT
        if start + size > SPAN:
            raise MemoryError("a batch of more than 64 GiB does not fit into shared memory")
        self.size = start + size
        return self._arena.memory(self._region, self.size)[start : self.size], start

    def new(
        self, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Make a contiguous tensor in the region. Returns it, and the same tensor to be sent.

        strides: those of a contiguous tensor, of which dimensions of the size 1 may have any.
        """
        count = int(np.prod(shape, dtype=np.int64))
        if count == 0:
            # It does not refer to the region, which the worker frees if it has sent nothing else in it.
            empty = torch.empty(shape, dtype=dtype)
            empty = empty if strides is None else empty.as_strided(shape, strides)
            return empty, empty
        memory, start = self.room(count * dtype.itemsize)
        tensor = torch.from_numpy(memory).view(dtype).view(shape)
        tensor = tensor if strides is None else tensor.as_strided(shape, strides)
        sent = tensor.as_subclass(Sent)
        sent.arguments = (self, start, dtype, tuple(shape), tensor.stride())
        sent.address = tensor.data_ptr()
        return tensor, sent

    def give_back(self) -> None:
        """Free the region without sending the batch."""
        self._arena.give_back(self._region)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._pickled:
            # An object of the batch pickles its parts separately, and one lease would end before another. Whether the
            # first pickle arrives is unknown, so its region may stay in use. Further batches are sent in torch's way.
            self._arena.usable = False
            return _itself, (self._arena.memory(self._region, self.size)[: self.size].copy(),)
        self._pickled = True
        return _lease, (self._arena._key, self._region, self.size)


class Sent(torch.Tensor):
    """A tensor in a parcel. Pickled in a worker, it becomes that tensor in the parent.

    It is a tensor because containers with a constructor of their own, such as ``PackedSequence``, look at their items.
    What they compute from it are ordinary tensors.
    """

    arguments: tuple[Any, ...]
    address: int
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __reduce_ex__(self, _protocol: Any) -> tuple[Any, ...]:
        if self._is_as_made():
            return _tensor, self.arguments
        plain = self.as_subclass(torch.Tensor).detach().clone()
        return _itself, (plain.requires_grad_(self.requires_grad),)

    def __deepcopy__(self, _memo: Any) -> torch.Tensor:
        return self.as_subclass(torch.Tensor).clone()

    def _is_as_made(self) -> bool:
        """Whether no collate function has given this tensor another shape, place or dtype, or other strides."""
        _, _, dtype, shape, strides = self.arguments
        return (
            self.shape == shape
            and self.dtype == dtype
            and self.stride() == strides
            and self.data_ptr() == self.address
            and not self.requires_grad
        )


# ---------------------------------------------------------------- in the parent


def _tensor(
    lease: npt.NDArray[np.uint8], start: int, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]
) -> torch.Tensor:
    count = int(np.prod(shape, dtype=np.int64))
    # The tensor, and everything that shares its storage, keeps the lease alive.
    return torch.frombuffer(lease, dtype=dtype, count=count, offset=start).as_strided(shape, strides)


def _itself(value: Any) -> Any:
    return value


def _lease(key: str, region: int, size: int) -> npt.NDArray[np.uint8]:
    """Return the memory of a parcel as an array. When the array is deleted, the region is freed."""
    arena = _arenas[key]
    memory = arena.memory(region, size)
    lease = _Lease(arena, region)
    _leases[id(lease)] = lease
    weakref.finalize(memory, lease.end).atexit = False
    return memory


class _Lease:
    """A region in use by the parent. It is freed when no tensor here or in a process forked meanwhile refers to it."""

    def __init__(self, arena: Arena, region: int) -> None:
        # A weak reference: when the workers are gone, their regions need not be freed.
        self._arena, self._region, self._owner = weakref.ref(arena), region, os.getpid()
        self.children: list[_Children] = []

    def end(self) -> None:
        """Called when no tensor in this process refers to the region any more."""
        if os.getpid() != self._owner:
            return  # only the process that made the lease frees the region
        if not self.give_back():
            _inherited.append(self)  # before it leaves the other list: a fork in another thread looks at both
        del _leases[id(self)]

    def inherit(self, children: _Children) -> None:
        """Note that the processes of a fork use the region, too. Those that are gone by now are forgotten."""
        with _looking:
            if self._arena() is None:
                self.children.clear()  # the workers are gone, so nothing will overwrite the region
                return
            self.children[:] = [old for old in self.children if not old.gone()]
            self.children.append(children)

    def give_back(self) -> bool:
        """Free the region, unless children still use it. Returns whether the lease is over."""
        if _forking:  # maybe with this batch
            return False
        arena = self._arena()
        if arena is not None and not all(children.gone() for children in self.children.copy()):
            return False
        if arena is not None:
            arena.give_back(self._region)
        return True


class _Children:
    """The processes of one fork and their descendants. They are gone when the writing end of the pipe is closed. If no
    pipe can be made, they count as never gone.
    """

    def __init__(self) -> None:
        self._read = self._write = -1
        with contextlib.suppress(OSError):
            self._read, self._write = pipe()

    def forked(self) -> None:
        """Close the writing end in the parent."""
        if self._write >= 0:
            os.close(self._write)

    def gone(self) -> bool:
        if self._write < 0:
            return False
        with _looking:
            if self._read >= 0:
                os.set_blocking(self._read, False)
                with contextlib.suppress(BlockingIOError):
                    os.read(self._read, 1)
                    os.close(self._read)
                    self._read = -1
            return self._read < 0

    def __del__(self) -> None:
        if self._read >= 0:
            os.close(self._read)


_leases: dict[int, _Lease] = {}  # leases that tensors of this process hold
_inherited: list[_Lease] = []  # leases that ended in this process, but maybe not in its children
_forking: dict[int, _Children] = {}  # thread -> the child that it is about to fork
_looking = threading.RLock()  # held to look at children: a lease may end in any thread, and at any allocation


def settle() -> None:
    """Free regions whose last users were children that are gone."""
    if _inherited:
        _inherited[:] = [lease for lease in _inherited if not lease.give_back()]


def _before_fork() -> None:
    _end_fork()  # an interrupt may have prevented that after the last one
    # The fork may wait for other threads. Batches that they receive meanwhile belong to the child as well.
    if _arenas:
        _forking[threading.get_ident()] = _Children()


def _after_fork_in_parent() -> None:
    children = _forking.get(threading.get_ident())
    if children is not None:
        for lease in [*list(_leases.values()), *_inherited]:
            lease.inherit(children)
    _end_fork()


def _end_fork() -> None:
    children = _forking.pop(threading.get_ident(), None)
    if children is not None:
        children.forked()


def _after_fork_in_child() -> None:
    # Only the parent ends its leases. The child keeps the writing end of the pipe open as long as it lives.
    global _looking
    _looking = threading.RLock()  # the thread that held the old one exists only in the parent
    _leases.clear()
    _inherited.clear()
    _forking.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
