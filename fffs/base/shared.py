"""Shared: open files that threads use, and that one of them may close at any moment; also in a child of fork."""

from __future__ import annotations

import os
import threading
import weakref

from fffs.errors import ClosedError


class _Use:
    """The with-block of ``Shared.use``. Entered for each read: a generator would take three times as long."""

    __slots__ = ("_shared",)

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def __enter__(self) -> None:
        self._shared.begin_use()

    def __exit__(self, *_: object) -> None:
        self._shared.end_use()


# All of this process, for a child of fork, which inherits them.
_all: weakref.WeakSet[Shared] = weakref.WeakSet()


class Shared:
    """What is closed once nobody uses it any more. May be used from any thread, and by a child of fork.

    ``shown`` is its name in errors.
    """

    def __init__(self, shown: str) -> None:
        self._shown = shown
        self._lock = threading.Lock()
        self._users = 0
        self._closing = False
        _all.add(self)

    def _end(self) -> None:
        """Close the files. Called once, without the lock."""
        raise NotImplementedError

    def use(self) -> _Use:
        """Keep the files open in a with-block; the last user closes them when ``close`` was called in between."""
        return _Use(self)

    def begin_use(self) -> None:
        """What entering ``use`` does."""
        with self._lock:
            if self._closing:
                raise ClosedError(f"{self._shown}: the reader has been closed")
            self._users += 1

    def end_use(self) -> None:
        """What leaving ``use`` does."""
        with self._lock:
            if self._users:  # nobody counts in a child that was forked in the middle of this use
                self._users -= 1
            last = self._closing and self._users == 0
        if last:
            self._end()

    def close(self) -> None:
        """Close the files, once nobody reads from them any more. May be called again."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            idle = self._users == 0
        if idle:
            self._end()

    def forget_other_threads(self) -> None:
        """In a child of fork: whoever held the lock or read stayed behind, and would never let go here."""
        self._lock = threading.Lock()
        waited_for, self._users = self._users, 0
        if self._closing and waited_for:
            self._end()

    def __del__(self) -> None:
        if not getattr(self, "_closing", True):
            self.close()

    @property
    def closed(self) -> bool:
        """Whether ``close`` has been called."""
        return self._closing


def _after_fork_in_child() -> None:
    for shared in list(_all):
        shared.forget_other_threads()


os.register_at_fork(after_in_child=_after_fork_in_child)
