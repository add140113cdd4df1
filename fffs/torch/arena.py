"""Arena: shared memory in which the workers of a loader hand over their batches, used again and again.

torch makes new shared memory for every tensor that leaves a worker: the kernel clears its pages, both processes fault
them in, and its descriptor goes through a socket. An arena is one memory file that lives as long as the workers. It is
cut into regions; a worker takes a free one, puts the tensors of a batch there, and sends their places. In the parent
they become ordinary tensors, and when the last of them is gone the region is free again.

A region's memory is allocated when it is first written. The file has no name: nothing is left behind whatever dies, and
the size of /dev/shm is no limit.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
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

    May be used from any thread. A region is written by one worker, and given back by the parent alone.
    """

    def __init__(self, workers: int, regions: int) -> None:
        """workers: how many there will be. regions: how many batches of each may be in use at once."""
        header = -(-workers * regions // mmap.PAGESIZE) * mmap.PAGESIZE
        self._regions, self._header = regions, header
        self._key = secrets.token_hex(8)
        self._fd = memory_file("fffs-arena")
        self._maps: dict[int, mmap.mmap] = {}
        os.ftruncate(self._fd, header + workers * regions * SPAN)
        self._busy = mmap.mmap(self._fd, header)  # a byte per region: 0 when it is free
        _arenas[self._key] = self

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)

    def __reduce__(self) -> tuple[Any, ...]:
        return _attach, (DupFd(self._fd), self._key, self._regions, self._header)

    def take(self, worker: int) -> Parcel | None:
        """Of a worker: a parcel in a free region, or None when the parent holds all of them."""
        first = worker * self._regions
        region = self._busy.find(b"\0", first, first + self._regions)
        if region < 0:
            return None
        self._busy[region] = 1
        return Parcel(self, region)

    def give_back(self, region: int) -> None:
        """Nobody refers to the region any more."""
        self._busy[region] = 0

    def memory(self, region: int, size: int) -> npt.NDArray[np.uint8]:
        """At least size bytes from the region's beginning: a new array."""
        mapped = self._maps.get(region)
        if mapped is None or len(mapped) < size:
            mapped = mmap.mmap(self._fd, -(-size // STEP) * STEP, offset=self._header + region * SPAN)
            self._maps[region] = mapped
        return np.frombuffer(mapped, np.uint8)


def _attach(fd: Any, key: str, regions: int, header: int) -> Arena:
    """Of a worker that was not forked: its parent's arena."""
    arena = Arena.__new__(Arena)
    arena._fd, arena._key, arena._regions, arena._header = fd.detach(), key, regions, header
    arena._maps, arena._busy = {}, mmap.mmap(arena._fd, header)
    return arena


class Parcel:
    """The tensors of one batch, in one region. Made by a worker; pickled, it arrives as a lease of the region."""

    def __init__(self, arena: Arena, region: int) -> None:
        self._arena, self._region = arena, region
        self.size = 0

    def room(self, size: int) -> tuple[npt.NDArray[np.uint8], int]:
        """Memory for one tensor, uint8[size], and where in the region that is. Raises MemoryError beyond 64 GiB."""
        start = -(-self.size // ALIGNMENT) * ALIGNMENT
        if start + size > SPAN:
            raise MemoryError("a batch of more than 64 GiB does not fit into shared memory")
        self.size = start + size
        return self._arena.memory(self._region, max(self.size, 1))[start : self.size], start

    def new(self, dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[torch.Tensor, Any]:
        """A tensor to be written, and what is to be sent in its place."""
        count = int(np.prod(shape, dtype=np.int64))
        memory, start = self.room(count * dtype.itemsize)
        tensor = torch.from_numpy(memory).view(dtype) if count else torch.empty(0, dtype=dtype)
        return tensor.view(shape), Sent(self, start, dtype, shape)

    def give_back(self) -> None:
        """Nothing will be sent."""
        self._arena.give_back(self._region)

    def __reduce__(self) -> tuple[Any, ...]:
        return _lease, (self._arena._key, self._region, self.size)


class Sent:
    """A tensor in a parcel. Pickled in a worker, it arrives as that tensor."""

    def __init__(self, parcel: Parcel, start: int, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        self._arguments = (parcel, start, dtype, tuple(shape))

    def __reduce__(self) -> tuple[Any, ...]:
        return _tensor, self._arguments


# ---------------------------------------------------------------- in the parent


def _tensor(lease: npt.NDArray[np.uint8], start: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    count = int(np.prod(shape, dtype=np.int64))
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    # It keeps the lease alive, and so does everything that shares its storage.
    return torch.frombuffer(lease, dtype=dtype, count=count, offset=start).view(shape)


def _lease(key: str, region: int, size: int) -> npt.NDArray[np.uint8]:
    """The memory of a parcel, as an array whose end gives the region back."""
    arena = _arenas[key]
    memory = arena.memory(region, max(size, 1))
    lease = _Lease(arena, region)
    _leases[id(lease)] = lease
    weakref.finalize(memory, lease.end).atexit = False
    return memory


class _Lease:
    """A region that the parent holds: until nobody refers to it here, nor in a process forked meanwhile."""

    def __init__(self, arena: Arena, region: int) -> None:
        # Not the arena itself: when the workers are gone, their regions need not be given back.
        self._arena, self._region, self._owner = weakref.ref(arena), region, os.getpid()
        self.children: list[_Children] = []

    def end(self) -> None:
        """Nobody in this process refers to the region any more."""
        if os.getpid() != self._owner:
            return  # only the parent tells
        del _leases[id(self)]
        if not self.give_back():
            _inherited.append(self)

    def give_back(self) -> bool:
        """Give the region back, unless children still have it."""
        arena = self._arena()
        if arena is not None and not all(children.gone() for children in self.children):
            return False
        if arena is not None:
            arena.give_back(self._region)
        return True


class _Children:
    """The processes forked at one moment, and theirs: gone when nobody holds the pipe's writing end any more."""

    def __init__(self) -> None:
        self._read, self.write = pipe()

    def gone(self) -> bool:
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


_leases: dict[int, _Lease] = {}  # that tensors of this process hold
_inherited: list[_Lease] = []  # ended here, maybe not in children
_forking: list[_Children] = []  # while this process forks


def settle() -> None:
    """Give back what only children held that are gone."""
    if _inherited:
        _inherited[:] = [lease for lease in _inherited if not lease.give_back()]


def _before_fork() -> None:
    if _leases:
        children = _Children()
        _forking.append(children)
        for lease in list(_leases.values()):
            lease.children.append(children)


def _after_fork_in_parent() -> None:
    if _forking:
        os.close(_forking.pop().write)


def _after_fork_in_child() -> None:
    # Its parent's leases are none of its business; that it holds the pipe's writing end is all it does for them.
    _leases.clear()
    _inherited.clear()
    _forking.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
