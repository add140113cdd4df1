"""fs-verity: the kernel lets nobody change a protected file, and compares each page with a tree of hashes when it reads
it from the disk. The digest of that tree, as fsverity(1) prints it, is kept in ``FILE.fsverity``.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import struct
from dataclasses import dataclass

from fffs.base.descriptors import above_standard, describe
from fffs.errors import UsageError, WriteError
from fffs.files.dirfd import close
from fffs.files.file import File
from fffs.files.sidecar_names import DIGEST, real_path

# <linux/fsverity.h>: FS_IOC_ENABLE_VERITY with struct fsverity_enable_arg: version, hash algorithm, block size; without
# salt and signature. FS_IOC_MEASURE_VERITY with struct fsverity_digest: algorithm, size, and room for the digest.
_ENABLE, _ARGUMENT = 0x40806685, struct.pack("=3I 116x", 1, 1, 4096)
_MEASURE, _HEAD, _ROOM = 0xC0046686, struct.Struct("=HH"), 64
_ALGORITHMS = {1: "sha256", 2: "sha512"}
# Errors of a kernel or file system without fs-verity, or (EINVAL) with smaller blocks.
_MISSING = (errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL)
# A kept digest: the first word of what fsverity(1) prints.
_KEPT, _KEPT_MAX = re.compile(rb"(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})(?:\s|\Z)"), 4096
# The owner of a folder chooses what the name leads to: a link would show a line of any file to another user's command.
_LOOK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class Verity:
    """The digest of a file under fs-verity, or None if it is not; and the digest that is kept beside it, or None.

    ``problem`` says why there is no answer to one of the two. ``possible`` tells whether the file system and the kernel
    have fs-verity.
    """

    measured: str | None = None
    kept: str | None = None
    problem: str = ""
    possible: bool = False

    def __str__(self) -> str:
        """Describe it for people; an empty text if the file has nothing to do with fs-verity."""
        if self.problem:
            return f"{self.measured or 'no'}; {self.problem}"
        if self.measured is None:
            return f"no, although the digest {self.kept} is kept" if self.kept is not None else ""
        if self.kept is None:
            return f"{self.measured}, not kept"
        return f"{self.measured}, {'as kept' if self.measured == self.kept else f'but {self.kept} is kept'}"


def look(file: File) -> Verity:
    """Return what protects an open file, and what is kept beside it. Only local files have either."""
    if file.descriptor < 0:
        return Verity()
    measured, kept, problem, possible = None, None, "", True
    try:
        measured = _measure(file.descriptor)
    except OSError as error:
        possible = error.errno not in _MISSING
        if possible and error.errno != errno.ENODATA:
            problem = f"{file.name}: its digest cannot be read: {describe(error)}"
    path = real_path(file.name) + DIGEST
    try:
        kept = _read_kept(path)
    except OSError as error:
        what = "is a symbolic link" if error.errno == errno.ELOOP else f"cannot be read: {describe(error)}"
        problem = problem or f"{path}: {what}; replace it by what `fsverity measure` prints, or remove it"
    return Verity(measured, kept, problem, possible)


def _read_kept(path: str) -> str | None:
    """Return the digest in a file; None if there is no such file. Raises OSError."""
    try:
        fd = above_standard(os.open(path, _LOOK))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENAMETOOLONG):  # of a file whose own name nearly has the greatest length
            return None
        raise
    try:
        regular = stat.S_ISREG(os.fstat(fd).st_mode)
        digest = _KEPT.match(os.pread(fd, _KEPT_MAX, 0)) if regular else None
    finally:
        close(fd)
    if digest is None:
        raise OSError(errno.EINVAL, "it has no digest" if regular else "not a regular file")
    return digest[1].decode()


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
