"""importing: a with-block for imports on first use, during which no other thread forks.

A child of fork cannot import a module that another thread of its parent was importing: it waits for the lock of that
import for ever. So forking waits for such imports, at most PATIENCE seconds: the import may itself wait for a module
that the forking thread is importing. Imports do not wait for each other, which could be a deadlock with the locks of
modules.
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
    """Counts the threads that are inside the block. A thread may enter it again."""

    def __init__(self) -> None:
        self._inside: Counter[int] = Counter()  # thread -> how many blocks it is in
        self._lock: Any = threading.RLock()
        self._changed = threading.Condition(self._lock)
        # Written in C: an interrupt that arrives in a hook in Python is lost, and it may follow a fork.
        self.after_fork_in_parent = self._lock.release

    def __enter__(self) -> None:
        with self._changed:
            self._inside[threading.get_ident()] += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._inside[threading.get_ident()] -= 1
            self._inside += Counter()  # drops zeros
            self._changed.notify_all()

    def before_fork(self) -> None:
        """Wait until no other thread is inside, and let none in until the fork is done."""
        self._lock.acquire()
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
