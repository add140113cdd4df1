"""together: calls a function with several items in threads, each with the settings of the calling thread."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

from fffs.base.stopping import StopFlag

Item = TypeVar("Item")
Result = TypeVar("Result")


def together(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    threads: int,
    discard: Callable[[Result], object] | None = None,
) -> list[Result]:
    """Return the results for all items, in their order.

    Args:
        work: called with each item. An interrupt of the calling thread ends its reads.
        items: any.
        threads: how many are called at a time; 1: this thread calls all.
        discard: called with each result if work fails for another item.

    Raises the exception of the first item for which work fails, after all threads have stopped.

    """
    flag, done = StopFlag(), list[Result]()

    def work_here(item: Item) -> Result:
        with flag.here():
            return work(item)

    try:
        if min(threads, len(items)) <= 1:
            for item in items:
                done.append(work(item))
            return done
        with ThreadPoolExecutor(min(threads, len(items))) as pool:
            try:
                # A context for each item: one context cannot run in two threads at once.
                futures = [pool.submit(contextvars.copy_context().run, work_here, item) for item in items]
                wait(futures)
            except BaseException:
                flag.set()
                pool.shutdown(cancel_futures=True)
                raise
        done += [future.result() for future in futures if not future.exception()]
        return [future.result() for future in futures]
    except BaseException:
        if discard:
            for result in done:
                discard(result)
        raise
