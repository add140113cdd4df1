"""The cache of indexes that were made by scanning a file or object, in the user's cache folder.

``$XDG_CACHE_HOME/fffs`` (mode 0700, files 0600) has one entry per file, named by device and inode. An entry is used if
the user owns it, its key (file system, device, inode, size, times) equals that of the file, and its checksum is right.
Its content is then validated like all input, and compared with the file (``fffs.formats.frames``). Other entries are
ignored, and the index is made and stored again. Failures of the cache are never errors.

A key identifies a file only on a local disk: a mounted image or FUSE file system may reuse a device number, and may
have any inodes and times. Files on such file systems have no key (``fffs.files.file_systems``), nor have files whose
change time is a whole second: a kernel sets it to the nanosecond, but programs that make images of ext4 and others set
it to any second, also to the same one in each image. The key of an object is made of its URL, its server and its ETag.

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
import stat
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from fffs.base.descriptors import above_standard
from fffs.base.importing import importing
from fffs.base.paths import random_name
from fffs.base.times import nearest_time
from fffs.files.cache_folder import open_user_folder
from fffs.files.dirfd import close
from fffs.files.file import File
from fffs.files.file_systems import keeps_times
from fffs.native import lib
from fffs.native.checksums import CHECK_NONE, crc32

_log = logging.getLogger("fffs.cache")

MAGIC: Final = b"fffsSCAN"
VERSION: Final = 2
HEADER: Final = struct.Struct("<8sII16sQQqqqQII")
"""Magic, version, format, UUID of the file system, device, inode, size, mtime and ctime in nanoseconds, number of
records, kind of the records' checksums, reserved (0). int64[n] ends follow; uint32[n] checksums, unless their kind is
CHECK_NONE; u32 CRC-32 of everything before it."""

FEWEST: Final = 1024  # records; below this, a scan costs less than an entry
SETTLED: Final = 60.0  # seconds in which a write(2) may change a file without changing its times
LIMIT: Final = 1 << 30  # bytes of all entries; beyond this, the oldest are removed
UNFINISHED: Final = 3600.0  # seconds after which an unfinished entry is abandoned


# <linux/fs.h>: _IOR(0x15, 0, struct fsuuid2), a length and 16 bytes. Linux 6.9.
_GET_UUID: Final = 0x80111500

_kept = itertools.count(1)
_unused = contextvars.ContextVar("_unused", default=False)


class Key(NamedTuple):
    """Identifies a file and its state."""

    system: bytes
    device: int
    inode: int
    size: int
    mtime: int
    ctime: int


@dataclass(frozen=True)
class Entry:
    """The cached part of an index: the end of each record's data, and checksums of the kind ``check``."""

    ends: npt.NDArray[np.int64]
    checksums: npt.NDArray[np.uint32] | None
    check: int


@contextlib.contextmanager
def unused() -> Iterator[None]:
    """In the block, this thread uses no entries but stores new ones. For verification, which must read the file."""
    token = _unused.set(True)
    try:
        yield
    finally:
        _unused.reset(token)


def key_of(file: File) -> Key | None:
    """Return the key of an open file, or None if its file system or its change time does not identify it, or an entry
    cannot have its times. Raises OSError.
    """
    if file.tag:
        return _key_of_object(file)
    fd = file.descriptor
    if fd < 0 or not keeps_times(fd):
        return None
    status = os.fstat(fd)
    times = status.st_mtime_ns, status.st_ctime_ns
    if status.st_ctime_ns % 10**9 == 0 or any(time != nearest_time(time) for time in times):
        return None
    return Key(_system(fd), status.st_dev, status.st_ino, status.st_size, *times)


def _key_of_object(file: File) -> Key:
    """Return the key of an object: its URL and place instead of device and inode, and its tag instead of the rest."""
    with importing:
        import hashlib  # imported late: it takes milliseconds, and files of this machine need no hash
    where = f"{file.name}\n{file.place}".encode(errors="surrogateescape")
    device, inode = struct.unpack("<QQ", hashlib.sha256(where).digest()[:16])
    return Key(hashlib.sha256(file.tag.encode()).digest()[:16], device, inode, file.size, 0, 0)


def _system(fd: int) -> bytes:
    """Return 16 bytes that identify a file system, also among those with the same device number over time."""
    with contextlib.suppress(OSError):
        uuid = fcntl.ioctl(fd, _GET_UUID, bytes(17))[1:]
        if any(uuid):
            return uuid
    return struct.pack("<Q8x", os.fstatvfs(fd).f_fsid & (2**64 - 1))


def settle(file: File, key: Key, smallest: int) -> bool:
    """Whether to keep the index of an open file: it is large enough, and each later change will change its key.

    Call this before the scan. Waits for the write-back of dirty pages, unless the file is too small.

    smallest: the least size of a record in bytes.
    """
    if key.size < FEWEST * smallest:
        return False
    if file.tag:
        return True
    newest = max(key.mtime, key.ctime)
    return newest <= time.time_ns() - int(SETTLED * 1e9) and lib.fffs_clean_pages(file.descriptor) == 0


def load(kind: int, key: Key) -> Entry | None:
    """Return the valid entry for a file, or None. kind: the format's number."""
    if _unused.get():
        return None
    with _folder(create=False) as folder:
        if folder is None:
            return None
        try:
            # O_NONBLOCK: do not block on a FIFO of that name.
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
    """Store the index of a file that had settled before the scan and has the same key after it."""
    if len(entry.ends) < FEWEST:
        return
    with _folder(create=True) as folder:
        if folder is None:
            return
        name = _name(kind, key)
        temporary = f".{name}.{random_name(6)}"
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
    """Return the name of an entry. It does not depend on the file's state, so a new entry replaces the old one."""
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
        crc = crc32(part, crc)
    return [*parts, struct.pack("<I", crc)]


def _write(folder: int, name: str, parts: list[Any]) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(above_standard(os.open(name, flags, 0o600, dir_fd=folder)), "wb") as file:
        for part in parts:
            file.write(part)


def _prune_at_times(folder: int) -> None:
    """Prune after 1, 2, 4, 8 ... new entries: after each one, it would take longer than the scans of 100,000 files."""
    number = next(_kept)
    if number & (number - 1) == 0:
        _prune(folder)


def _prune(folder: int) -> None:
    """Remove the oldest entries beyond LIMIT and unfinished ones of killed processes; only files with such names."""
    now = time.time()
    entries: list[tuple[float, int, str]] = []
    for name in os.listdir(folder):
        if not name.startswith(("scan-", ".scan-")):
            continue
        with contextlib.suppress(FileNotFoundError):  # other processes prune, too
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if name.startswith("scan-"):
                entries.append((status.st_mtime, status.st_size, name))
            elif status.st_mtime < now - UNFINISHED:
                os.unlink(name, dir_fd=folder)
    size = sum(entry[1] for entry in entries)
    for _, its_size, name in sorted(entries)[:-1]:  # never the last one, which may be the new one
        if size <= LIMIT:
            break
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
        size -= its_size


def read_entry(fd: int, kind: int, expected: Key) -> Entry | None:
    """Return the entry in an open file of the cache, or None if it is not valid."""
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
    # Each record has a header of at least eight bytes: an impossible number is refused before memory is allocated.
    if n > expected.size // 8 or own.st_size != HEADER.size + width * n + 4:
        return None
    body = np.empty(width * n + 4, np.uint8)
    done = 0
    while done < body.nbytes:  # Linux reads at most 0x7ffff000 bytes at a time
        got = os.preadv(fd, [body.data[done:]], HEADER.size + done)
        if not got:
            return None
        done += got
    if crc32(body[:-4], crc32(head)) != int(body[-4:].view(np.uint32)[0]):
        return None
    checksums = None if check == CHECK_NONE else body[8 * n : 12 * n].view(np.uint32)
    return Entry(body[: 8 * n].view(np.int64), checksums, check)


# ---------------------------------------------------------------- the folder


@contextlib.contextmanager
def _folder(create: bool) -> Iterator[int | None]:
    """Yield the cache folder's descriptor, or None if there is no usable folder."""
    fd = open_user_folder(create)
    try:
        yield fd
    finally:
        if fd is not None:
            close(fd)
