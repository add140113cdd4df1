"""LastingStore: a store of obstore, which is made anew after the machine slept."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, Final

_SKEW: Final = 60.0  # seconds that the clocks may drift apart


class LastingStore:
    """Makes a store when it is needed first. Thread-safe.

    obstore keeps the credentials of a role until their end by the monotonic clock, which stands still while the machine
    is suspended: they end without its notice.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._store: Any = None
        self._ahead = 0.0
        self._lock = threading.Lock()

    def get(self) -> Any:
        """Return the store. Raises what making the first one raises. If making another one fails, the old one stays."""
        with self._lock:
            ahead = time.time() - time.monotonic()
            if self._store is None:
                self._store, self._ahead = self._make(), ahead
            elif abs(ahead - self._ahead) > _SKEW:
                with contextlib.suppress(Exception):  # the network may need a while, and what is kept may still be good
                    self._store, self._ahead = self._make(), ahead
            return self._store
