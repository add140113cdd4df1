"""The folder of the cache of objects: what is in it, and how much room there is.

The folder is ``$FFFS_CACHE``, or ``objects`` in the user's cache folder. ``KEY.data`` has the bytes of an object at
their offsets; ``KEY.map`` has a head, which says what they are, and then what ``native/object_cache.c`` keeps.

The cache keeps what it has when it is full: an epoch reads everything once, so that the least recently used block is
the one that is needed next. Only other objects, which nobody has open, make room for a new one, the oldest first.

Environment:
    FFFS_CACHE: ``off``, or the folder.
    FFFS_CACHE_SIZE: bytes of all objects together. Default: half of the free space.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from fffs.errors import UsageError
from fffs.files.cache_folder import SWITCH, open_private_folder, open_user_folder
from fffs.files.dirfd import close
from fffs.native import lib
from fffs.native.checksums import crc32

SIZE: Final = "FFFS_CACHE_SIZE"
MAGIC: Final = b"fffsOBJ1"
_HEAD: Final = struct.Struct("<8sII")
"""Magic, length of the description, CRC-32 of the description, which is JSON."""


@dataclass(frozen=True)
class Version:
    """A version of an object: its URL without a query, its ETag, and its size in bytes."""

    name: str
    etag: str
    size: int

    @property
    def key(self) -> str:
        """The name of its files in the cache."""
        return hashlib.sha256(self.head).hexdigest()[:40]

    @property
    def head(self) -> bytes:
        """What precedes the blocks in the map: ``FFFS_CACHE_HEAD`` bytes, or more if the name is very long."""
        text = json.dumps([self.name, self.etag, self.size]).encode()
        return _HEAD.pack(MAGIC, len(text), crc32(text)) + text


def wants_cache() -> bool:
    """Whether the environment names a folder: then all readers use it, and not only mounts and torch."""
    return os.environ.get(SWITCH, "off").lower() != "off"


def wanted_size() -> int | None:
    """Return the bytes in FFFS_CACHE_SIZE, or None. Raises UsageError."""
    value = os.environ.get(SIZE)
    if not value:
        return None
    if not value.isdecimal():
        raise UsageError(f"{SIZE} must be a number of bytes, not {value!r}")
    return int(value)


@contextlib.contextmanager
def cache_folder(create: bool) -> Iterator[int | None]:
    """Yield the descriptor of the folder, or None if there is none that can be used. Raises OSError."""
    wanted = os.environ.get(SWITCH)
    if wanted:
        if create:
            os.makedirs(os.path.dirname(os.path.abspath(wanted)), 0o700, exist_ok=True)
        fd = open_private_folder(wanted, create)
    else:
        above = open_user_folder(create)
        if above is None:
            yield None
            return
        try:
            fd = open_private_folder("objects", create, above)
        finally:
            close(above)
    try:
        yield fd
    finally:
        if fd is not None:
            close(fd)


@dataclass(frozen=True)
class Cached:
    """An object in the cache. ``used`` is when it was opened last, in seconds since 1970; ``bytes`` what it takes."""

    key: str
    name: str
    etag: str
    size: int
    bytes: int
    used: float


def list_cached() -> list[Cached]:
    """Return what is in the cache, the least recently used first. Raises OSError."""
    with cache_folder(create=False) as folder:
        return [] if folder is None else _list(folder)


def prune(most: int) -> list[Cached]:
    """Remove objects, the least recently used first, until the others take at most so many bytes. Returns the removed.

    Those that are open stay. Raises OSError.
    """
    with cache_folder(create=False) as folder:
        return [] if folder is None else _prune(folder, most)


def _list(folder: int) -> list[Cached]:
    found: list[Cached] = []
    for name in os.listdir(folder):
        key, dot, kind = name.partition(".")
        if dot and kind == "data":
            with contextlib.suppress(OSError):
                found.append(_describe(folder, key))
    return sorted(found, key=lambda entry: entry.used)


def _describe(folder: int, key: str) -> Cached:
    status = os.stat(f"{key}.data", dir_fd=folder, follow_symlinks=False)
    name, etag = "?", ""
    with contextlib.suppress(OSError, ValueError, struct.error):
        fd = os.open(f"{key}.map", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        try:
            head = os.pread(fd, lib.FFFS_CACHE_HEAD, 0)
        finally:
            close(fd)
        magic, length, crc = _HEAD.unpack_from(head)
        text = head[_HEAD.size : _HEAD.size + length]
        if magic == MAGIC and crc32(text) == crc:
            name, etag, _ = json.loads(text)
    return Cached(key, name, etag, status.st_size, status.st_blocks * 512, status.st_mtime)


def room_for(folder: int, version: Version, budget: int | None) -> int:
    """Return how many bytes an object may add, after others made room for it."""
    cached = _list(folder)
    used, mine = sum(entry.bytes for entry in cached), sum(e.bytes for e in cached if e.key == version.key)
    most = (free_space(folder) + used) // 2 if budget is None else budget
    wanted = max(version.size - mine, 0)
    if used + wanted > most:
        used -= sum(entry.bytes for entry in _prune(folder, max(most - wanted, 0)))
    # Two processes may fetch a block, so that no limit is right where all of it fits.
    return version.size * 4 if used + wanted <= most else max(most - used, 0)


def _prune(folder: int, most: int) -> list[Cached]:
    cached = _list(folder)
    used = sum(entry.bytes for entry in cached)
    removed: list[Cached] = []
    for entry in cached:
        if used <= most:
            break
        if _remove_unused(folder, entry.key):
            used -= entry.bytes
            removed.append(entry)
    return removed


def _remove_unused(folder: int, key: str) -> bool:
    """Remove an object unless it is open somewhere."""
    try:
        fd = os.open(f"{key}.data", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove(folder, key)
    except OSError:
        return False
    finally:
        close(fd)
    return True


def remove(folder: int, key: str) -> None:
    """Remove an object from the open folder. Raises OSError."""
    # The data last: without a map, nothing of it counts.
    for kind in ("map", "data"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{key}.{kind}", dir_fd=folder)


def free_space(fd: int) -> int:
    """Return the free bytes of a file system, for users without privileges."""
    system = os.fstatvfs(fd)
    return system.f_bavail * system.f_frsize
