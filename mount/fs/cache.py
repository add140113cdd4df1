"""What was decoded lately, in bounded memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import trio

CAPACITY = 64 << 20
"""Bytes of all that is kept; what is larger is kept alone."""
LARGE = CAPACITY // 4  # bytes of a record that is read while no other is


class _Decoded(Protocol):
    @property
    def cost(self) -> int:
        """Bytes of memory."""


_T = TypeVar("_T", bound=_Decoded)


class Cache(Generic[_T]):
    """Decodes records in threads, each once for all who ask for it at a time. For the thread of the event loop."""

    def __init__(self, load: Callable[[int], _T]) -> None:
        self._decode = load
        self._kept: OrderedDict[int, _T] = OrderedDict()
        self._cost = 0
        self._loading: dict[int, trio.Event] = {}
        self._large = trio.Lock()

    async def get(self, number: int, size: int, limiter: trio.CapacityLimiter) -> _T:
        """What load gives for that number. size: of its record, in bytes. Raises what load raises."""
        while number not in self._kept and number in self._loading:
            await self._loading[number].wait()
        if (found := self._kept.get(number)) is not None:
            self._kept.move_to_end(number)
            return found
        self._loading[number] = trio.Event()
        try:
            if size < LARGE:
                return await self._load(number, limiter)
            async with self._large:
                return await self._load(number, limiter)
        finally:
            self._loading.pop(number).set()

    async def _load(self, number: int, limiter: trio.CapacityLimiter) -> _T:
        found = await trio.to_thread.run_sync(self._decode, number, limiter=limiter)
        self._kept[number] = found
        self._cost += found.cost
        while self._cost > CAPACITY and len(self._kept) > 1:
            self._cost -= self._kept.popitem(last=False)[1].cost
        return found
