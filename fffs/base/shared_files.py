"""Shared: open files that several threads use and any of them may close at any time; also in a child of fork."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable

from fffs.errors import ClosedError


class _Use:
    """The with-block of ``Shared.use``. Entered for each read: a class takes a third of a generator's time."""

    __slots__ = ("_shared",)

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def __enter__(self) -> None:
        self._shared.begin_use()

    def __exit__(self, *_: object) -> None:
        self._shared.end_use()


# All objects of this process: a child of fork inherits them.
_all: weakref.WeakSet[Shared] = weakref.WeakSet()


class Shared:
    """Files that are closed when the last user leaves. May be used from any thread, and in a child of fork.

    ``shown`` is the name in errors.
    """

    def __init__(self, shown: str) -> None:
        self._shown = shown
        self._lock = threading.Lock()
        self._users = 0
        self._closing = False
        self._ended = False
        _all.add(self)

    def _end(self) -> None:
        """Close the files. Called once, without the lock."""
        raise NotImplementedError

    def use(self) -> _Use:
        """Keep the files open during a with-block. If ``close`` is called meanwhile, the last user closes them."""
        return _Use(self)

    def begin_use(self) -> None:
        """Enter ``use``. Raises ClosedError after ``close``."""
        with self._lock:
            if self._closing:
                raise ClosedError(f"{self._shown}: the reader has been closed")
            self._users += 1

    def end_use(self) -> None:
        """Leave ``use``."""
        with self._lock:
            if self._users:  # 0 in a child that was forked during this use
                self._users -= 1
            last = self._closing and self._users == 0
        if last:
            self._end_once()

    def close(self) -> None:
        """Close the files as soon as no thread reads from them. May be called again."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            idle = self._users == 0
        if idle:
            self._end_once()

    def forget_other_threads(self) -> None:
        """In a child of fork: reset lock and count. Threads that held them exist only in the parent."""
        self._lock = threading.Lock()
        waited_for, self._users = self._users, 0
        if self._closing and waited_for:
            self._end_once()

    def _end_once(self) -> None:
        self._ended = True
        self._end()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Nothing uses the files any more, whatever the count: an interrupt may keep a use from being uncounted. When
        # the interpreter ends, the modules that are needed may be gone; the end of the process frees everything.
        if not getattr(self, "_ended", True) and not is_finalizing():
            self._closing = True
            self._end_once()

    @property
    def closed(self) -> bool:
        """Whether ``close`` has been called."""
        return self._closing


def _after_fork_in_child() -> None:
    for shared in list(_all):
        shared.forget_other_threads()


os.register_at_fork(after_in_child=_after_fork_in_child)
