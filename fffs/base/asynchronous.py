"""in_thread: blocking calls from tasks of trio or asyncio, whichever is running."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from fffs.base.importing import importing

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a thread while other tasks continue.

    If the task is cancelled, the call still runs to its end in the thread, and its result is dropped.
    """
    trio = sys.modules.get("trio")  # a task of trio can only run if it is imported
    if trio is not None and trio.lowlevel.in_trio_run():
        result: T = await trio.to_thread.run_sync(lambda: function(*args, **kwargs), abandon_on_cancel=True)
        return result
    with importing:
        import asyncio  # imported late: it takes a tenth of a command's start, and commands have no tasks
    return await asyncio.to_thread(function, *args, **kwargs)
