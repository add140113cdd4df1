"""Rows that were looked at lately, in bounded memory."""

from __future__ import annotations

from collections import OrderedDict

import trio

from fffs.layouts.rows import Row, Rows

CAPACITY = 64 << 20
"""Bytes of all rows; one that is larger is kept alone."""
LARGE = CAPACITY // 4  # bytes of a record that is read while no other is


class RowCache:
    """Loads rows in threads, each once for all who ask for it at a time. For the thread of the event loop."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._kept: OrderedDict[int, Row] = OrderedDict()
        self._cost = 0
        self._loading: dict[int, trio.Event] = {}
        self._large = trio.Lock()

    async def get(self, number: int, size: int, limiter: trio.CapacityLimiter) -> Row:
        """The row of that number. size: of its record, in bytes. Raises what ``Rows.load`` raises."""
        while number not in self._kept and number in self._loading:
            await self._loading[number].wait()
        if row := self._kept.get(number):
            self._kept.move_to_end(number)
            return row
        self._loading[number] = trio.Event()
        try:
            if size < LARGE:
                return await self._load(number, limiter)
            async with self._large:
                return await self._load(number, limiter)
        finally:
            self._loading.pop(number).set()

    async def _load(self, number: int, limiter: trio.CapacityLimiter) -> Row:
        row = await trio.to_thread.run_sync(self._rows.load, number, limiter=limiter)
        self._kept[number] = row
        self._cost += row.cost
        while self._cost > CAPACITY and len(self._kept) > 1:
            self._cost -= self._kept.popitem(last=False)[1].cost
        return row
