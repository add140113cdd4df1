"""fs-verity: the kernel lets nobody change a protected file, and compares each page with a tree of hashes when it reads
it from the disk. The digest of that tree, as fsverity(1) prints it, is kept in ``FILE.fsverity``.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from dataclasses import dataclass

from fffs.base.failures import reading
from fffs.errors import UsageError, WriteError
from fffs.files.atomic import DIGEST, real_path
from fffs.files.dirfd import close
from fffs.files.file import File

# <linux/fsverity.h>: FS_IOC_ENABLE_VERITY with struct fsverity_enable_arg: version, hash algorithm, block size; without
# salt and signature. FS_IOC_MEASURE_VERITY with struct fsverity_digest: algorithm, size, and room for the digest.
_ENABLE, _ARGUMENT = 0x40806685, struct.pack("=3I 116x", 1, 1, 4096)
_MEASURE, _HEAD, _ROOM = 0xC0046686, struct.Struct("=HH"), 64
_ALGORITHMS = {1: "sha256", 2: "sha512"}
# Errors of a kernel or file system without fs-verity, or (EINVAL) with smaller blocks.
_MISSING = (errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL)
LONGEST = 4096  # bytes that are read of a kept digest


@dataclass(frozen=True)
class Verity:
    """The digest of a file under fs-verity, or None if it is not; and the digest that is kept beside it, or None."""

    measured: str | None
    kept: str | None

    def __str__(self) -> str:
        """Describe it for people; an empty text if the file has nothing to do with fs-verity."""
        if self.measured is None:
            return f"no, although the digest {self.kept} is kept" if self.kept is not None else ""
        if self.kept is None:
            return f"{self.measured}, not kept"
        return f"{self.measured}, {'as kept' if self.measured == self.kept else f'but {self.kept} is kept'}"


def look(file: File) -> Verity:
    """Return what protects an open file, and what is kept beside it. Raises as opening and reading the latter do."""
    kept = file.open_beside(real_path(file.name) + DIGEST)
    with reading(file.name):
        measured = measure(file.descriptor) if file.descriptor >= 0 else None
    if kept is None:
        return Verity(measured, None)
    with kept:
        words = kept.read_bytes(0, LONGEST).decode(errors="backslashreplace").split()
    return Verity(measured, words[0] if words else "")


def measure(fd: int) -> str | None:
    """Return the digest of an open file as ``sha256:HEX``; None if it is not under fs-verity. Raises OSError."""
    try:
        return _measure(fd)
    except OSError as error:
        if error.errno not in (errno.ENODATA, *_MISSING):
            raise
        return None


def _measure(fd: int) -> str:
    buffer = bytearray(_HEAD.pack(0, _ROOM) + bytes(_ROOM))
    fcntl.ioctl(fd, _MEASURE, buffer)
    algorithm, size = _HEAD.unpack_from(buffer)
    return f"{_ALGORITHMS.get(algorithm, algorithm)}:{buffer[_HEAD.size : _HEAD.size + size].hex()}"


def refuse_without_verity(path: str) -> None:
    """Raise UsageError if a file ``path`` could not be put under fs-verity, which saves the work for it."""
    try:
        fd = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # it can be writable but not readable
        return
    try:
        _measure(fd)
    except OSError as error:
        if error.errno in _MISSING:
            raise _missing(path, error) from None
    finally:
        close(fd)


def enable(fd: int, path: str) -> str:
    """Put a file under fs-verity, and return its digest. Nobody may have it open for writing.

    Raises:
        UsageError: its file system or the kernel has no fs-verity.
        WriteError: another error.

    """
    try:
        fcntl.ioctl(fd, _ENABLE, _ARGUMENT)
        return _measure(fd)
    except OSError as error:
        if error.errno in _MISSING:
            raise _missing(path, error) from None
        raise WriteError(error.errno, path, "fs-verity cannot be enabled") from error


def _missing(path: str, error: OSError) -> UsageError:
    if error.errno == errno.EINVAL:
        return UsageError(f"{path}: fs-verity needs a file system whose blocks have 4096 bytes here; or omit --verity")
    return UsageError(
        f"{path}: this file system has no fs-verity, or this kernel (CONFIG_FS_VERITY) has none; an ext4 file system "
        "gets it by tune2fs -O verity; or omit --verity"
    )
