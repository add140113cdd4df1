"""importing: a with-block for imports on first use, which one thread at a time does, and during which none forks.

Two threads that import the modules of a package at once can want its locks in different orders. Python then gives one
of them a module that is not complete, as the parts of numpy, and its import fails. So a thread waits for the imports of
others, at most PATIENCE seconds: they may themselves wait for a module that this thread is importing.

A child of fork cannot import a module that another thread of its parent was importing: it waits for the lock of that
import for ever. So forking waits for such imports as well.
"""

from __future__ import annotations

# The hooks of modules that are imported later run before the one here, which would then wait with their locks held.
import concurrent.futures.thread  # noqa: F401
import logging  # noqa: F401
import os
import threading
from collections import Counter
from typing import Any, Final

PATIENCE: Final = 60.0


class _Importing:
    """Knows the threads that are inside the block. A thread may enter it again."""

    def __init__(self) -> None:
        self._inside: Counter[int] = Counter()  # thread -> how many blocks it is in
        self._lock: Any = threading.RLock()
        self._changed = threading.Condition(self._lock)
        # Written in C: an interrupt that arrives in a hook in Python is lost, and it may follow a fork.
        self.after_fork_in_parent = self._lock.release

    def __enter__(self) -> None:
        with self._changed:
            if threading.get_ident() not in self._inside:
                self._wait()
            self._inside[threading.get_ident()] += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._inside[threading.get_ident()] -= 1
            self._inside += Counter()  # drops zeros
            self._changed.notify_all()

    def before_fork(self) -> None:
        """Wait until no other thread is inside, and let none in until the fork is done."""
        self._lock.acquire()
        self._wait()

    def _wait(self) -> None:
        """Wait until no other thread is inside. The caller has the lock, which is released meanwhile."""
        if self._inside:
            me = threading.get_ident()
            self._changed.wait_for(lambda: not self._inside.keys() - {me}, PATIENCE)

    def after_fork_in_child(self) -> None:
        """Forget the other threads, which exist only in the parent."""
        me = threading.get_ident()
        self._inside = Counter({me: self._inside[me]}) if self._inside[me] else Counter()
        self._lock._at_fork_reinit()
        self._changed = threading.Condition(self._lock)


importing: Final = _Importing()

os.register_at_fork(
    before=importing.before_fork,
    after_in_parent=importing.after_fork_in_parent,
    after_in_child=importing.after_fork_in_child,
)
