"""in_thread: blocking calls from tasks of trio or asyncio, whichever is running."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any, ParamSpec, TypeVar

from fffs.base.importing import importing
from fffs.base.stopping import StopFlag

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a thread while other tasks continue.

    If the task is cancelled, the result is dropped. The call ends soon in the thread if it waits for a store, or else
    when it is done: asyncio waits for it before it ends.
    """
    flag = StopFlag()

    def call() -> T:
        with flag.here():
            return function(*args, **kwargs)

    try:
        trio = sys.modules.get("trio")  # a task of trio can only run if it is imported
        if trio is not None and _runs(trio):
            result: T = await trio.to_thread.run_sync(call, **abandoning(True))
            return result
        with importing:
            import asyncio  # imported late: it takes a tenth of a command's start, and commands have no tasks
        return await asyncio.to_thread(call)
    except BaseException:
        flag.set()
        raise


def abandoning(abandon: bool) -> dict[str, Any]:
    """Return the argument of trio's ``to_thread.run_sync`` for whether a cancelled task leaves a call to its thread."""
    return {_name_of_abandoning(): abandon}


@cache
def _name_of_abandoning() -> str:
    major, minor = sys.modules["trio"].__version__.split(".")[:2]
    return "abandon_on_cancel" if (int(major), int(minor)) >= (0, 23) else "cancellable"


def _runs(trio: Any) -> bool:
    """Whether trio runs in this thread."""
    if hasattr(trio.lowlevel, "in_trio_run"):  # since 0.23
        return bool(trio.lowlevel.in_trio_run())
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return False
    return True
