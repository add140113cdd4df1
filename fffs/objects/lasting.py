"""LastingStore: a store of obstore, which is made anew after the machine slept."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any, Final

_SKEW: Final = 60.0  # seconds that the clocks may drift apart
_PAUSE: Final = 5.0  # seconds; each attempt may wait for a service that does not answer


class LastingStore:
    """Makes a store when it is needed first. Thread-safe.

    obstore keeps the credentials of a role until their end by the monotonic clock, which stands still while the machine
    is suspended: they end without its notice.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._store: Any = None
        self._ahead, self._failed = 0.0, -math.inf
        self._lock = threading.Lock()

    def get(self) -> Any:
        """Return the store. Raises what making the first one raises. If making another one fails, the old one stays for
        a while: the network may need that, and what it keeps may still be good.
        """
        with self._lock:
            now = time.monotonic()
            ahead = time.time() - now
            if self._store is None:
                self._store, self._ahead = self._make(), ahead
            elif abs(ahead - self._ahead) > _SKEW and now >= self._failed + _PAUSE:
                try:
                    self._store, self._ahead = self._make(), ahead
                except Exception:
                    self._failed = time.monotonic()
            return self._store
