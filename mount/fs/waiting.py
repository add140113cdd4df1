"""Runs calls that may wait for a disk in threads beside the event loop, or in the loop if no thread can be started."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

from fffs.base.asynchronous import abandoning
from fffs.base.descriptors import is_lack_of_threads

T = TypeVar("T")


async def in_thread(call: Callable[[], T], limiter: trio.CapacityLimiter | None = None, abandon: bool = True) -> T:
    """Run a call in a thread, and return its result.

    A container or user may have as many threads as it is allowed. Then the call runs in the event loop, in which all
    requests wait for it: otherwise reads of good bytes would fail, and exceptions in other tasks would end the mount.

    Args:
        call: may be called a second time if it itself starts a thread, and that fails.
        limiter: limits how many such calls run at once; None: trio's limit for all others.
        abandon: return when this task is cancelled, although the call has not returned: a disk may never answer.

    """
    try:
        return await trio.to_thread.run_sync(call, limiter=limiter, **abandoning(abandon))
    except RuntimeError as error:
        if not is_lack_of_threads(error):
            raise
    return call()
