"""Indexes that were made by scanning a file, kept in the user's cache folder for the next time it is opened.

``$XDG_CACHE_HOME/fffs`` (mode 0700, files 0600) has one entry per file, named by its device and inode. An entry is
believed when all of this holds: it is ours, its key (file system, device, inode, size, times) is that of the file, and
its own checksum is right. What it says is validated afterwards like anything that was read, and compared with the file
(``fffs.formats.frames``). Anything else is ignored, and the index is made and written anew. No failure to keep or find
an entry is an error.

A key says which file it is only on a disk of this machine: a mounted image, or a mount of FUSE, gets the device number
of the one before, and the inodes and times that somebody chose. So files on such file systems have no key
(``fffs.files.file_systems``).

Environment:
    FFFS_CACHE: ``off``: neither read nor write entries.
"""

from __future__ import annotations

import contextlib
import contextvars
import fcntl
import itertools
import logging
import os
import secrets
import stat
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from fffs.base.descriptors import above_standard
from fffs.files.dirfd import close
from fffs.files.file import File
from fffs.files.file_systems import keeps_times
from fffs.native import engine, lib
from fffs.native.engine import CHECK_NONE

_log = logging.getLogger("fffs.cache")

MAGIC: Final = b"fffsSCAN"
VERSION: Final = 2
HEADER: Final = struct.Struct("<8sII16sQQqqqQII")
"""Magic, version, format, UUID of the file system, device, inode, size, mtime and ctime in nanoseconds, number of
records, kind of the records' checksums, reserved (0). int64[n] ends follow; uint32[n] checksums, unless their kind is
CHECK_NONE (so there is a place for checksums that somebody computes for a format without any); u32 CRC-32 of everything
before it."""

FEWEST: Final = 1024  # records below which a scan costs less than an entry
SETTLED: Final = 60.0  # seconds for which one write(2) may still change a file without changing its times
LIMIT: Final = 1 << 30  # bytes of all entries: beyond that, those that were made first are removed
UNFINISHED: Final = 3600.0  # seconds after which nobody goes on with an unfinished entry


# <linux/fs.h>: _IOR(0x15, 0, struct fsuuid2), a length and 16 bytes. Linux 6.9.
_GET_UUID: Final = 0x80111500

_kept = itertools.count(1)
_unused = contextvars.ContextVar("_unused", default=False)


class Key(NamedTuple):
    """Which file it is, in which state."""

    system: bytes
    device: int
    inode: int
    size: int
    mtime: int
    ctime: int


@dataclass(frozen=True)
class Entry:
    """What is kept of an index: where each record's data ends, and its checksums, whose kind is ``check``."""

    ends: npt.NDArray[np.int64]
    checksums: npt.NDArray[np.uint32] | None
    check: int


@contextlib.contextmanager
def unused() -> Iterator[None]:
    """A block in which this thread believes no entry: what verifies a file looks at the file. New ones are kept."""
    token = _unused.set(True)
    try:
        yield
    finally:
        _unused.reset(token)


def key_of(file: File) -> Key | None:
    """The key of an open file, or None where entries would mean nothing. Raises OSError."""
    fd = file.descriptor
    if fd < 0 or not keeps_times(fd):
        return None
    status = os.fstat(fd)
    return Key(_system(fd), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _system(fd: int) -> bytes:
    """16 bytes that tell file systems apart, also those that had the same device number."""
    with contextlib.suppress(OSError):
        uuid = fcntl.ioctl(fd, _GET_UUID, bytes(17))[1:]
        if any(uuid):
            return uuid
    return struct.pack("<Q8x", os.fstatvfs(fd).f_fsid & (2**64 - 1))


def settle(file: File, key: Key, smallest: int) -> bool:
    """Whether the index of an open file, whose records take ``smallest`` bytes at least, is worth keeping, and each
    change from now on makes the key another one. Waits for dirty pages, unless there cannot be records enough.

    To be asked before the file is scanned.
    """
    if key.size < FEWEST * smallest:
        return False
    newest = max(key.mtime, key.ctime)
    return newest <= time.time_ns() - int(SETTLED * 1e9) and lib.fffs_clean_pages(file.descriptor) == 0


def load(kind: int, key: Key) -> Entry | None:
    """The entry for a file, if there is one to believe. kind is the format's number."""
    if _unused.get():
        return None
    with _folder(create=False) as folder:
        if folder is None:
            return None
        try:
            # O_NONBLOCK: a FIFO of that name must not stop us.
            fd = os.open(_name(kind, key), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        except OSError:
            return None
        try:
            return read_entry(fd, kind, key)
        except (OSError, MemoryError) as error:
            _log.debug("entry not read: %s", error)
            return None
        finally:
            close(fd)


def store(kind: int, key: Key, entry: Entry) -> None:
    """Keep the index of a file whose key was the same before and after the scan, and which had settled before."""
    if len(entry.ends) < FEWEST:
        return
    with _folder(create=True) as folder:
        if folder is None:
            return
        name = _name(kind, key)
        temporary = f".{name}.{secrets.token_hex(6)}"
        try:
            _write(folder, temporary, _encode(kind, key, entry))
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            _prune_at_times(folder)
        except OSError as error:
            _log.debug("entry not kept: %s", error)
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder)


# ---------------------------------------------------------------- entries


def _name(kind: int, key: Key) -> str:
    """A file that changed has its old entry's name: nothing piles up."""
    return f"scan-{kind}-{key.device:x}-{key.inode:x}"


def _encode(kind: int, key: Key, entry: Entry) -> list[Any]:
    parts: list[Any] = [
        HEADER.pack(MAGIC, VERSION, kind, *key, len(entry.ends), entry.check, 0),
        np.ascontiguousarray(entry.ends),
    ]
    if entry.checksums is not None:
        parts.append(np.ascontiguousarray(entry.checksums))
    crc = 0
    for part in parts:
        crc = engine.crc32(part, crc)
    return [*parts, struct.pack("<I", crc)]


def _write(folder: int, name: str, parts: list[Any]) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(above_standard(os.open(name, flags, 0o600, dir_fd=folder)), "wb") as file:
        for part in parts:
            file.write(part)


def _prune_at_times(folder: int) -> None:
    """After the first entry that this process keeps, the second, the fourth and so on: looking at all entries after
    each would take longer than the scans of 100,000 files.
    """
    number = next(_kept)
    if number & (number - 1) == 0:
        _prune(folder)


def _prune(folder: int) -> None:
    """Remove entries of files that are long forgotten, and what killed processes have left. Only what is named so."""
    now = time.time()
    entries: list[tuple[float, int, str]] = []
    for name in os.listdir(folder):
        if not name.startswith(("scan-", ".scan-")):
            continue
        with contextlib.suppress(FileNotFoundError):  # others prune, too
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if name.startswith("scan-"):
                entries.append((status.st_mtime, status.st_size, name))
            elif status.st_mtime < now - UNFINISHED:
                os.unlink(name, dir_fd=folder)
    size = sum(entry[1] for entry in entries)
    for _, its_size, name in sorted(entries)[:-1]:  # never the last one, which may be the one just made
        if size <= LIMIT:
            break
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
        size -= its_size


def read_entry(fd: int, kind: int, expected: Key) -> Entry | None:
    """The entry in a file of the cache, if it is one to believe."""
    own = os.fstat(fd)
    if not stat.S_ISREG(own.st_mode) or own.st_uid != os.geteuid() or own.st_mode & 0o022:
        return None
    head = os.pread(fd, HEADER.size, 0)
    if len(head) != HEADER.size:
        return None
    magic, version, its_kind, *key, n, check, reserved = HEADER.unpack(head)
    if (magic, version, its_kind, tuple(key), reserved) != (MAGIC, VERSION, kind, expected, 0):
        return None
    width = 8 if check == CHECK_NONE else 12
    # Every record has a head of eight bytes at least: a number that cannot be is refused before there is memory for it.
    if n > expected.size // 8 or own.st_size != HEADER.size + width * n + 4:
        return None
    body = np.empty(width * n + 4, np.uint8)
    if os.preadv(fd, [body.data], HEADER.size) != body.nbytes:
        return None
    if engine.crc32(body[:-4], engine.crc32(head)) != int(body[-4:].view(np.uint32)[0]):
        return None
    checksums = None if check == CHECK_NONE else body[8 * n : 12 * n].view(np.uint32)
    return Entry(body[: 8 * n].view(np.int64), checksums, check)


# ---------------------------------------------------------------- the folder


@contextlib.contextmanager
def _folder(create: bool) -> Iterator[int | None]:
    """The cache folder's descriptor, or None when there is none to use."""
    fd = _open_folder(create)
    try:
        yield fd
    finally:
        if fd is not None:
            close(fd)


def _open_folder(create: bool) -> int | None:
    if os.environ.get("FFFS_CACHE", "").lower() == "off":
        return None
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if not os.path.isabs(base):
        return None
    path = os.path.join(base, "fffs")
    try:
        if create:
            os.makedirs(base, 0o700, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except (OSError, ValueError) as error:
        _log.debug("no cache folder: %s", error)
        return None
    status = os.fstat(fd)
    # Whoever else may write there could say where our records are.
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        _log.debug("cache folder %s is not ours alone", path)
        close(fd)
        return None
    return fd
