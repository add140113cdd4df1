"""The cache of objects on the local disk: one sparse file and a map of its blocks for each version of an object.

All processes of a user share them. Whoever has an object open holds a shared lock on its data, so that nobody removes
it. See ``cache_space`` for the folder and its size, and ``native/object_cache.c`` for the blocks.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import tempfile
from typing import Final

from fffs.base.descriptors import above_standard
from fffs.base.withblock import Closing
from fffs.files.cache_folder import is_off
from fffs.files.dirfd import close
from fffs.native import lib
from fffs.objects.cache_space import Version, cache_folder, free_space, remove, room_for, wanted_size

_log = logging.getLogger("fffs.cache")

_NEW: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class BlockCache(Closing):
    """The open cache of a version of an object: the descriptors ``data`` and ``map``, and the bytes that may be added.

    Close it after the object. A child of fork shares the descriptors, and so the lock.
    """

    def __init__(self, data: int, map: int, limit: int) -> None:
        self.data, self.map, self.limit = data, map, limit

    def close(self) -> None:
        """Close both files."""
        for fd in (self.data, self.map):
            if fd >= 0:
                close(fd)
        self.data = self.map = -1


def open_cache(version: Version) -> BlockCache | None:
    """Open the cache of an object: the shared one, or one for this process alone. None if caches are off.

    An object without an ETag, or with one that does not stand for its bytes, is not the same in two processes.
    """
    if is_off():
        return None
    budget = wanted_size()
    if version.etag.startswith('"') and len(version.head) <= lib.FFFS_CACHE_HEAD:
        try:
            with cache_folder(create=True) as folder:
                if folder is not None:
                    return _open_shared(folder, version, budget)
        except OSError as error:
            _log.debug("cache of %s not used: %s", version.name, error)
    return _open_private(version, budget)


# ---------------------------------------------------------------- one object


def _open_shared(folder: int, version: Version, budget: int | None) -> BlockCache:
    while True:
        data = _open_locked(folder, f"{version.key}.data")
        try:
            if os.fstat(data).st_size != version.size:
                os.ftruncate(data, version.size)
            map = _open_map(folder, version)
        except BaseException:
            close(data)
            raise
        # Removed between opening and locking, or with the wrong map: begin anew.
        if map is not None and os.fstat(data).st_nlink:
            os.utime(data)  # when it was used last
            return BlockCache(data, map, room_for(folder, version, budget))
        close(data)
        if map is None:
            remove(folder, version.key)
        else:
            close(map)


def _open_locked(folder: int, name: str) -> int:
    fd = above_standard(os.open(name, _NEW, 0o600, dir_fd=folder))
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(f"{name}: not a regular file")
    except BaseException:
        close(fd)
        raise
    return fd


def _open_map(folder: int, version: Version) -> int | None:
    """Open the map, and write the head of a new one. None if it is that of something else, or damaged."""
    fd = above_standard(os.open(f"{version.key}.map", _NEW, 0o600, dir_fd=folder))
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


def _open_private(version: Version, budget: int | None) -> BlockCache | None:
    """Return a cache without a name, which ends with its process."""
    files: list[int] = []
    try:
        for size in (version.size, 0):
            with tempfile.TemporaryFile(buffering=0) as file:
                files.append(above_standard(os.dup(file.fileno())))
                os.ftruncate(files[-1], size)
        free = free_space(files[0]) // 2
    except OSError as error:
        _log.debug("no cache of %s: %s", version.name, error)
        for fd in files:
            close(fd)
        return None
    return BlockCache(files[0], files[1], free if budget is None else min(budget, free))
