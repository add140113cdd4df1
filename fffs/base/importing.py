"""importing: a with-block for imports on first use, during which no other thread forks.

A child of fork cannot import a module that another thread of its parent was importing: it waits for the lock of that
import for ever. So forking waits for such imports, at most PATIENCE seconds: the import may itself wait for a module
that the forking thread is importing.
"""

from __future__ import annotations

# The hooks of modules that are imported later run before the one here, which would then wait with their locks held.
import concurrent.futures.thread  # noqa: F401
import logging  # noqa: F401
import os
import threading
from typing import Final

PATIENCE: Final = 60.0

importing: Final = threading.RLock()
_forking = threading.local()


def _before() -> None:
    _forking.holds = importing.acquire(timeout=PATIENCE)


def _after() -> None:
    if _forking.holds:
        importing.release()


os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)
