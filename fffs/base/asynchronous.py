"""Blocking calls from tasks of trio or asyncio, whichever runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a thread, while other tasks go on.

    When the task is cancelled, the call ends in its thread, and what it returns is dropped.
    """
    trio = sys.modules.get("trio")  # who runs in it has imported it
    if trio is not None and trio.lowlevel.in_trio_run():
        result: T = await trio.to_thread.run_sync(lambda: function(*args, **kwargs), abandon_on_cancel=True)
        return result
    import asyncio  # a tenth of the time that a command takes to start, and commands have no tasks

    return await asyncio.to_thread(function, *args, **kwargs)
