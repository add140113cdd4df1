"""The cache of objects on the local disk: one sparse file and a map of its blocks for each version of an object.

All processes of a user share them. Whoever has an object open holds a shared lock on its data, so that nobody removes
it. See ``cache_space`` for the folder and its size, and ``native/object_cache.c`` for the blocks.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
from typing import Final

from fffs.base.cache_settings import CacheSettings
from fffs.base.descriptors import above_standard, describe
from fffs.base.sizes import Budget
from fffs.base.withblock import Closing
from fffs.files.cache_folder import is_private
from fffs.files.dirfd import close
from fffs.files.temporary import NO_LOCKS
from fffs.native import lib
from fffs.objects.cache_count import will_fill
from fffs.objects.cache_space import Version, cache_folder, free_space, path_of, remove, room_for, usable_space

_kept_free: int | None = None  # by all private caches together: half of what was free for the first

# How often a cache is made anew that others remove meanwhile, or whose file system does not count the links of files.
_ATTEMPTS: Final = 100

_NEW: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class BlockCache(Closing):
    """The open cache of a version of an object: the descriptors ``data`` and ``map``, and the bytes that may be added.

    ``keep_free``: the bytes that stay free on the disk.

    Close it after the object. A child of fork shares the descriptors, and so the lock.

    Attributes:
        why_private: why other processes cannot use it, and it ends with this one; empty if they can.

    """

    def __init__(self, data: int, map: int, limit: int, keep_free: int, why_private: str = "") -> None:
        self.data, self.map, self.limit, self.keep_free, self.why_private = data, map, limit, keep_free, why_private

    def close(self) -> None:
        """Close both files."""
        for fd in (self.data, self.map):
            if fd >= 0:
                close(fd)
        self.data = self.map = -1


def open_cache(version: Version, settings: CacheSettings) -> BlockCache:
    """Open the cache of an object: the shared one, or one for this process alone.

    An object without an ETag, or with one that does not stand for its bytes, is not the same in two processes.

    Raises:
        OSError: neither is possible. The error is that of the shared one.

    """
    if not version.etag.startswith('"'):
        return _open_private(version, settings.budget, "its server tells no ETag that stands for the bytes")
    if len(version.head) > lib.FFFS_CACHE_HEAD:
        return _open_private(version, settings.budget, "its name is too long")
    try:
        with cache_folder(settings, create=True) as folder:
            cache = _open_shared(folder, version, settings.budget)
        will_fill(settings)
        return cache
    except OSError as error:
        why = _explain(settings, error)
        try:
            return _open_private(version, settings.budget, why)
        except OSError:
            raise OSError(error.errno, why) from None


def _explain(settings: CacheSettings, error: OSError) -> str:
    with contextlib.suppress(OSError):
        return f"{path_of(settings)}: {describe(error)}"
    return describe(error)


# ---------------------------------------------------------------- one object


def _open_shared(folder: int, version: Version, budget: Budget) -> BlockCache:
    for _ in range(_ATTEMPTS):
        data = _open_locked(folder, f"{version.key}.data")
        try:
            map = _open_map(folder, version)
            if map is not None and not _set_size(data, map, version.size):
                map = None
        except BaseException:
            close(data)
            raise
        # Removed between opening and locking, cut, or with the wrong map: begin anew.
        if map is not None and os.fstat(data).st_nlink:
            os.utime(data)  # when it was used last
            return BlockCache(data, map, *room_for(folder, version, budget))
        close(data)
        if map is None:
            remove(folder, version.key)
        else:
            close(map)
    raise OSError(errno.ESTALE, "files in it disappear")


def _open(folder: int, name: str) -> int:
    """Open a file, or make it; also anew, without a look at what is in it, if somebody else made it. Raises OSError."""
    for _ in range(_ATTEMPTS):
        fd = above_standard(os.open(name, _NEW, 0o600, dir_fd=folder))
        if is_private(fd):
            return fd
        close(fd)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
    raise PermissionError(errno.EPERM, f"other users may write to {name}")


def _open_locked(folder: int, name: str) -> int:
    fd = _open(folder, name)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, f"{name} is not a regular file")
    except BaseException as error:
        if isinstance(error, OSError) and error.errno in NO_LOCKS and not os.fstat(fd).st_size:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folder)  # nobody can use it
        close(fd)
        raise
    return fd


def _open_map(folder: int, version: Version) -> int | None:
    """Open the map, and write the head of a new one. None if it is that of something else, or damaged."""
    fd = _open(folder, f"{version.key}.map")
    head = version.head.ljust(lib.FFFS_CACHE_HEAD, b"\0")
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)  # two processes may make it at the same time
        if os.fstat(fd).st_size == 0:
            os.pwrite(fd, head, 0)
        good = os.pread(fd, len(head), 0) == head
        fcntl.flock(fd, fcntl.LOCK_UN)
    except BaseException:
        close(fd)
        raise
    if good:
        return fd
    close(fd)
    return None


def _set_size(data: int, map: int, size: int) -> bool:
    """Give new data its size. Returns False if it lost its end since, and closes the map: if it grew again, others that
    have it open would find zeros in it. Raises OSError, and closes the map.
    """
    good = False
    try:
        filled = os.fstat(map).st_size > lib.FFFS_CACHE_HEAD  # looked at first: data has its size before it is filled
        good = os.fstat(data).st_size == size
        if not good and not filled:
            os.ftruncate(data, size)
            good = True
    finally:
        if not good:
            close(map)
    return good


def _open_private(version: Version, budget: Budget, why: str) -> BlockCache:
    """Return a cache without a name, which ends with its process. Raises OSError."""
    global _kept_free
    files: list[int] = []
    try:
        for size in (version.size, 0):
            with tempfile.TemporaryFile(buffering=0) as file:
                files.append(above_standard(os.dup(file.fileno())))
                os.ftruncate(files[-1], size)
        free, usable = free_space(files[0]), usable_space(files[0])
    except OSError:
        for fd in files:
            close(fd)
        raise
    if _kept_free is None:
        _kept_free = free - min(budget.of(usable), free)
        if budget.bytes is not None:
            lib.fffs_object_cache_budget(budget.bytes)
    return BlockCache(files[0], files[1], min(budget.of(usable), free), _kept_free, why)
