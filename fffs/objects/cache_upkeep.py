"""Looks after the cache of objects: lists what is in it, verifies it, removes from it.

The functions may be called while others use the cache. What is open is never removed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from fffs.base.cache_settings import CacheSettings
from fffs.base.failures import reading
from fffs.base.jobs import Progress
from fffs.errors import ReadError, UsageError
from fffs.files.cache_folder import is_private
from fffs.files.dirfd import close
from fffs.native import ffi, lib
from fffs.objects.cache_space import (
    Cached,
    cache_folder,
    find_cached,
    lock_unused,
    path_of,
    prune,
    read_version,
    remove,
    remove_unused,
    usable_space,
)

_PART: Final = 64 << 20  # bytes that are verified at a time


@dataclass(frozen=True)
class CacheState:
    """What is in a cache: its folder, the most bytes that it keeps, its objects (the least recently used first), and
    which of them are open, by their keys. ``space``: what is free, and what they take; 0: there is no folder.
    """

    folder: str
    space: int
    limit: int
    entries: list[Cached]
    in_use: frozenset[str]

    @property
    def bytes(self) -> int:
        """What all objects take."""
        return sum(entry.bytes for entry in self.entries)


@dataclass(frozen=True)
class Verified:
    """The result for an object: how many of its blocks were compared, and how many of them were damaged and dropped.

    ``map_damaged``: nothing could be compared; ``removed``: so all of it was removed, unless it is open.
    """

    entry: Cached
    blocks: int
    damaged: int
    map_damaged: bool = False
    removed: bool = False


def list_cached(settings: CacheSettings) -> CacheState:
    """Return what is in the cache. A folder that does not exist has no objects.

    Raises:
        UsageError: caches are off. ReadError: the folder cannot be used.

    """
    with _opened(settings) as (path, folder):
        if folder is None:
            return CacheState(path, 0, settings.budget.of(0), [], frozenset())
        entries = find_cached(folder)
        space = usable_space(folder) + sum(entry.bytes for entry in entries)
        in_use = frozenset(entry.key for entry in entries if _is_open(folder, entry.key))
        return CacheState(path, space, settings.budget.of(space), entries, in_use)


def prune_cached(settings: CacheSettings, most: int, names: list[str] | None = None) -> list[Cached]:
    """Remove objects until all take at most so many bytes, the least recently used first; only those of these names.

    Raises as ``list_cached``.
    """
    with _opened(settings) as (_, folder):
        if folder is None:
            return []
        entries = find_cached(folder)
        among = [
            entry for entry in entries if names is None or (entry.version is not None and entry.version.name in names)
        ]
        return prune(folder, most, among, sum(entry.bytes for entry in entries))


def verify_cached(settings: CacheSettings, progress: Progress | None = None) -> list[Verified]:
    """Compare all blocks with their checksums, and drop those that differ. progress: called with bytes, and all bytes.

    Raises as ``list_cached``.
    """
    found: list[Verified] = []
    with _opened(settings) as (_, folder):
        entries = [] if folder is None else find_cached(folder)
        total, done = sum(entry.version.size for entry in entries if entry.version), 0
        for entry in entries:
            assert folder is not None
            with contextlib.suppress(FileNotFoundError):  # another process removed it meanwhile
                for result in _verify(folder, entry):
                    if progress:
                        progress(done + result.blocks * lib.FFFS_CACHE_BLOCK, total)
                found.append(result)
            done += entry.version.size if entry.version else 0
    return found


def _verify(folder: int, entry: Cached) -> Iterator[Verified]:
    """Verify an object, and yield the result so far again and again. Raises OSError."""
    version = entry.version or read_version(folder, entry.key)  # it may have been about to be made
    if version is None:
        yield Verified(entry, 0, 0, map_damaged=True, removed=remove_unused(folder, entry.key))
        return
    size, sums = version.size, ffi.new("fffs_cache_checked *")
    with contextlib.ExitStack() as opened:
        files = []
        for kind in ("data", "map"):
            flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            files.append(os.open(f"{entry.key}.{kind}", flags, dir_fd=folder))
            opened.callback(close, files[-1])
        if not all(map(is_private, files)):  # their locks may be somebody else's, too
            remove(folder, entry.key)
            yield Verified(entry, 0, 0, map_damaged=True, removed=True)
            return
        fcntl.flock(files[0], fcntl.LOCK_SH)  # so that nobody removes it meanwhile
        for offset in range(0, max(size, 1), _PART):
            status = lib.fffs_cache_check(*files, size, offset, _PART, sums)
            if status == -errno.ENOMEM:
                raise MemoryError("not enough memory to verify the cache")
            if status:
                raise OSError(-status, os.strerror(-status))
            yield Verified(entry, int(sums.blocks), int(sums.damaged))


def _is_open(folder: int, key: str) -> bool:
    try:
        with lock_unused(folder, key):
            return False
    except FileNotFoundError:
        return False
    except OSError:
        return True


@contextlib.contextmanager
def _opened(settings: CacheSettings) -> Iterator[tuple[str, int | None]]:
    """Yield the path of the folder and its descriptor, or None if it does not exist. Raises UsageError, ReadError."""
    if settings.is_off:
        raise UsageError("caches are off (FFFS_CACHE=off); name a folder with --cache")
    with reading("the cache"):
        path = path_of(settings)
    with contextlib.ExitStack() as stack:
        folder: int | None = None
        try:
            folder = stack.enter_context(cache_folder(settings, create=False))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise ReadError(error.errno, path, str(error.strerror) if error.errno == errno.EPERM else "") from None
        with reading(path):
            yield path, folder
