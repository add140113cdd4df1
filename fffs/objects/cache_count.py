"""count_again: several processes that fill a cache keep its size, though each counts only what it adds itself."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Final

from fffs.base.cache_settings import CacheSettings
from fffs.native import lib
from fffs.objects.cache_space import cache_folder, find_files, usable_space

_PAUSE: Final = 0.05  # seconds
_SHARE: Final = 0.01  # of the time: a folder of thousands of objects takes milliseconds

_filled: CacheSettings | None = None
_next = 0.0
_counting = threading.Lock()


def _after_fork_in_child() -> None:
    global _counting
    _counting = threading.Lock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork_in_child)


def will_fill(settings: CacheSettings) -> None:
    """Say that this process fills the cache of these settings."""
    global _filled
    # Without a limit in bytes, the free space of the disk tells; and then that of an earlier cache does not hold.
    _filled = settings if settings.budget.bytes is not None else None


def count_again() -> None:
    """Set what this process and its children may add to what others left since an object was opened or this was called,
    as often as that takes no time. Does nothing while another thread does it.
    """
    global _next
    settings = _filled
    if settings is None or time.monotonic() < _next or not _counting.acquire(blocking=False):
        return
    try:
        begin = time.monotonic()
        with contextlib.suppress(OSError), cache_folder(settings, create=False) as folder:
            used = sum(files.bytes for files in find_files(folder))
            left = max(settings.budget.of(usable_space(folder) + used) - used, 0)
            if _filled is settings:  # otherwise another cache was opened meanwhile
                lib.fffs_object_cache_budget(left)
        end = time.monotonic()
        _next = end + max((end - begin) / _SHARE, _PAUSE)
    finally:
        _counting.release()
