"""Pipeline: work on batches by several threads, with a bound on the bytes that are in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

from fffs.base.jobs import Jobs
from fffs.converting import records


class Pipeline:
    """Calls functions in threads. A with-block ends when all are done, or none is running any more and one has failed.

    Args:
        threads: how many there are at once.
        work: counts the bytes that are done.

    """

    def __init__(self, threads: int, work: Jobs) -> None:
        self._threads, self._work = threads, work
        self._pool = ThreadPoolExecutor(threads)
        self._pending: deque[tuple[Future[None], int]] = deque()
        self._bytes = 0

    def make_room(self, size: int) -> None:
        """Wait until a batch of so many bytes may be read: it is the only one, or they are not too many together."""
        while self._pending and (
            len(self._pending) > self._threads or self._bytes + size > (self._threads + 1) * records.BATCH_BYTES
        ):
            self._wait()

    def add(self, size: int, call: Callable[..., None], *arguments: Any) -> None:
        """Have a function called that works on so many bytes. Raises what an earlier one raised."""
        self._pending.append((self._pool.submit(call, *arguments), size))
        self._bytes += size

    def _wait(self) -> None:
        future, size = self._pending.popleft()
        future.result()
        self._bytes -= size
        self._work.count(size)

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            while kind is None and self._pending:
                self._wait()
        finally:
            self._pool.shutdown(cancel_futures=True)
