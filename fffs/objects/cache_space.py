"""The folder of the cache of objects: what is in it, and how much room there is.

The folder is that of ``cache_settings``, or ``objects`` in the user's cache folder. ``KEY.data`` has the bytes of an
object at their offsets; ``KEY.map`` has a head, which says what they are, and then what ``native/object_cache.c``
keeps.

The cache keeps what it has when it is full: an epoch reads everything once, so that the least recently used block is
the one that is needed next. Only other objects, which nobody has open, make room for a new one, the oldest first.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import stat
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from fffs.base.cache_settings import LISTINGS, CacheSettings
from fffs.base.memory import available_memory
from fffs.base.sizes import Budget
from fffs.files.cache_folder import default_folder, open_default_folder, open_private_folder
from fffs.files.dirfd import close
from fffs.files.file_systems import is_in_memory
from fffs.native import lib
from fffs.native.checksums import crc32

MAGIC: Final = b"fffsOBJ1"
_NAME: Final = "objects"
_DATA: Final = re.compile(r"([0-9a-f]{40})\.data")
_UNLIMITED: Final = 1 << 62
_HEAD: Final = struct.Struct("<8sII")
"""Magic, length of the description, CRC-32 of the description, which is JSON."""


# The fields of a query that belong to a signature, and change with it, by the one that says that there is one.
_SIGNATURES: Final = {
    "x-amz-signature": re.compile(r"x-amz-.*"),
    "x-goog-signature": re.compile(r"x-goog-.*"),
    "signature": re.compile(r"signature|expires|policy|key-pair-id|awsaccesskeyid|googleaccessid"),
    "sig": re.compile(r"sig|s[veprt]|ss|srt|spr|sip|sk[tesv]|skoid|sktid|saoid|suoid|scid|sdd"),
}


_Files = TypeVar("_Files", bound="CachedFiles")


@dataclass(frozen=True)
class Version:
    """A version of an object: its URL without a query, its ETag, its size in bytes, and its ``place_of``."""

    name: str
    etag: str
    size: int
    place: str = ""

    @property
    def key(self) -> str:
        """The name of its files in the cache."""
        return hashlib.sha256(self.head).hexdigest()[:40]

    @property
    def head(self) -> bytes:
        """What precedes the blocks in the map: ``FFFS_CACHE_HEAD`` bytes, or more if the name is very long."""
        text = json.dumps([self.name, self.etag, self.size, self.place]).encode()
        return _HEAD.pack(MAGIC, len(text), crc32(text)) + text


def path_of(settings: CacheSettings) -> str:
    """Return the path of the folder. Raises OSError if this user has no home."""
    return settings.folder or os.path.join(default_folder(), _NAME)


def place_of(url: str) -> str:
    """Return a hash of where an object is: its server, its path, and the query without a signature.

    ETags are unique for one address only: some servers make them of a size and a time. A name does not tell the
    server of a bucket, which is a setting, nor what a query chooses.
    """
    path, _, query = url.partition("?")
    fields = [field for field in query.split("&") if field]
    names = {field.partition("=")[0].lower() for field in fields}
    for mark, signature in _SIGNATURES.items():
        if mark in names:
            fields = [field for field in fields if not signature.fullmatch(field.partition("=")[0].lower())]
    return hashlib.sha256("&".join([path, *fields]).encode("utf-8", "surrogateescape")).hexdigest()[:32]


@contextlib.contextmanager
def cache_folder(settings: CacheSettings, create: bool) -> Iterator[int]:
    """Yield the descriptor of the folder. Raises OSError if it cannot be used."""
    if settings.folder:
        if create:
            os.makedirs(os.path.dirname(settings.folder), 0o700, exist_ok=True)
        fd = open_private_folder(settings.folder, create)
    else:
        above = open_default_folder(create)
        try:
            fd = open_private_folder(_NAME, create, above)
        finally:
            close(above)
    try:
        yield fd
    finally:
        close(fd)


@dataclass(frozen=True)
class CachedFiles:
    """The files of an object in the cache. ``key``: their name; ``bytes``: what they take; ``used``: when they were
    opened last, in seconds since 1970.
    """

    key: str
    bytes: int
    used: float


@dataclass(frozen=True)
class Cached(CachedFiles):
    """An object in the cache, and which one it is: ``version`` is None if its map is damaged."""

    version: Version | None


class _Listing:
    """What is in a folder when objects are opened, without those that were removed since.

    ``used``: the bytes of all. ``spent``: whether only open ones are left.
    """

    def __init__(self, files: list[CachedFiles]) -> None:
        self.files, self.spent = files, False
        self.sizes = {each.key: each.bytes for each in files}
        self.used = sum(self.sizes.values())

    def shrink(self, folder: int, most: int) -> None:
        """Remove objects until all take at most so many bytes, as ``prune``."""
        if self.spent or self.used <= most:
            return
        removed = {each.key for each in prune(folder, most, self.files, self.used)}
        self.files = [each for each in self.files if each.key not in removed]
        self.sizes = {each.key: each.bytes for each in self.files}
        self.used = sum(self.sizes.values())
        self.spent = self.used > most


def _listing(folder: int) -> _Listing:
    known, status = LISTINGS.get(), os.fstat(folder)
    if known is None:
        return _Listing(find_files(folder))
    place = status.st_dev, status.st_ino
    found = known.get(place)
    listing: _Listing = found or known.setdefault(place, _Listing(find_files(folder)))
    return listing


def find_files(folder: int) -> list[CachedFiles]:
    """Return what is in the open folder, the least recently used first. Other files are left out. Raises OSError.

    Objects that are opened list all others. So no map is read here: that would take minutes for thousands of parts.
    """
    found: list[CachedFiles] = []
    for name in os.listdir(folder):
        if match := _DATA.fullmatch(name):
            with contextlib.suppress(OSError):
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    found.append(CachedFiles(match[1], status.st_blocks * 512, status.st_mtime))
    return sorted(found, key=lambda files: (files.used, files.key))


def find_cached(folder: int) -> list[Cached]:
    """Return what is in the open folder, as ``find_files``, with what the maps say."""
    return [Cached(files.key, files.bytes, files.used, read_version(folder, files.key)) for files in find_files(folder)]


def read_version(folder: int, key: str) -> Version | None:
    """Return what the head of a map says, or None if it is damaged."""
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError, struct.error):
        fd = os.open(f"{key}.map", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        try:
            head = os.pread(fd, lib.FFFS_CACHE_HEAD, 0)
        finally:
            close(fd)
        magic, length, crc = _HEAD.unpack_from(head)
        text = head[_HEAD.size : _HEAD.size + length]
        if magic == MAGIC and len(text) == length and crc32(text) == crc:
            version = Version(*json.loads(text))
            return version if version.key == key else None
    return None


def room_for(folder: int, version: Version, budget: Budget) -> tuple[int, int]:
    """Return how many bytes an object may add, after others made room for it, and how many stay free on the disk.

    Sets what all objects of this process and its children may add together: others may be opened before one of them
    is read.
    """
    listing = _listing(folder)
    space = free_space(folder) + listing.used
    most = budget.of(usable_space(folder) + listing.used)
    wanted = max(version.size - listing.sizes.get(version.key, 0), 0)
    listing.shrink(folder, max(most - wanted, 0))
    left = max(most - listing.used, 0)
    lib.fffs_object_cache_budget(_UNLIMITED if budget.bytes is None else left)
    # Two processes may fetch a block, so that no limit is right where all of it fits.
    return (version.size * 4 if wanted <= left else left), (space - most if budget.bytes is None else 0)


def prune(folder: int, most: int, among: Collection[_Files], used: int) -> list[_Files]:
    """Remove objects, in this order, until all in the cache take at most so many bytes. Returns the removed.

    Those that are open stay. used: what all in the cache take.
    """
    removed: list[_Files] = []
    for files in among:
        if used <= most:
            break
        if remove_unused(folder, files.key):
            used -= files.bytes
            removed.append(files)
    return removed


def remove_unused(folder: int, key: str) -> bool:
    """Remove an object, and return True, unless it is open somewhere."""
    with contextlib.suppress(OSError), lock_unused(folder, key):
        remove(folder, key)
        return True
    return False


@contextlib.contextmanager
def lock_unused(folder: int, key: str) -> Iterator[None]:
    """Lock an object for the block. Raises OSError if it is open somewhere, in this process or another."""
    fd = os.open(f"{key}.data", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        close(fd)


def remove(folder: int, key: str) -> None:
    """Remove an object from the open folder. Raises OSError."""
    # The data last: without a map, nothing of it counts.
    for kind in ("map", "data"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{key}.{kind}", dir_fd=folder)


def usable_space(fd: int) -> int:
    """Return how many bytes may be added to a file system: in memory, not more than this process may take."""
    free = free_space(fd)
    return min(free, available_memory()) if is_in_memory(fd) else free


def free_space(fd: int) -> int:
    """Return the free bytes of a file system, for users without privileges."""
    system = os.fstatvfs(fd)
    return system.f_bavail * system.f_frsize
