"""Keeps the descriptors of this package above those of the standard streams, which a program may have closed.

A new descriptor gets the lowest free number. If that is 2, C libraries write their messages into the file, and a
process that becomes a daemon closes it. The rings of io_uring are exempt: nothing can be written to them.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
import sys
from contextlib import suppress

LOWEST = 3
_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))

FEW = 256
MANY = 1 << 20  # more may slow down programs that close every possible descriptor


def open_standard_streams() -> None:
    """Open /dev/null in place of each closed standard stream. Programs call this before they open anything."""
    for fd, (name, mode) in enumerate(_STREAMS):
        try:
            os.fstat(fd)
        except OSError:
            with suppress(OSError):  # without /dev/null it stays closed
                os.open(os.devnull, os.O_RDWR)  # gets this number, the lowest that is free
                os.set_inheritable(fd, True)
        if getattr(sys, name) is None:  # it was closed when the interpreter started
            with suppress(OSError):
                setattr(sys, name, os.fdopen(fd, mode, errors="backslashreplace", closefd=False))


def describe_shortage(error: BaseException) -> str:
    """Return one line if the error is a lack of descriptors, threads or memory, else an empty string."""
    if isinstance(error, MemoryError):
        return str(error) or "not enough memory"
    if is_lack_of_threads(error):
        return "the system refuses to start a thread; allow this user or container more of them (ulimit -u)"
    if not isinstance(error, OSError):
        return ""
    if error.errno == errno.EMFILE:
        return f"{error.strerror}; allow this process more of them (ulimit -n)"
    return str(error.strerror) if error.errno == errno.ENFILE else ""


def is_lack_of_threads(error: BaseException) -> bool:
    """Whether the error is that of a thread that the system refuses to start."""
    return isinstance(error, RuntimeError) and str(error) == "can't start new thread"  # Python's only sign of EAGAIN


def describe(error: OSError) -> str:
    """Return what went wrong, in the system's words; if descriptors are lacking, also what to do."""
    return describe_shortage(error) or str(error.strerror)


def above_standard(fd: int) -> int:
    """Return a descriptor of the same open file above 2; takes over ``fd``. Raises OSError."""
    if fd >= LOWEST:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, LOWEST)
    finally:
        os.close(fd)


def duplicate(fd: int) -> int:
    """Like dup(2), with a result above 2. Raises OSError."""
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, LOWEST)


def pipe() -> tuple[int, int]:
    """Like pipe(2), with both ends above 2: the reading and the writing end. Raises OSError."""
    ours, its = os.pipe()
    try:
        ours = above_standard(ours)
    except OSError:
        os.close(its)
        raise
    try:
        return ours, above_standard(its)
    except OSError:
        os.close(ours)
        raise


def memory_file(name: str) -> int:
    """Create a file in memory like memfd_create(2), with a descriptor above 2. Raises OSError."""
    if hasattr(os, "memfd_create"):
        return above_standard(os.memfd_create(name, os.MFD_CLOEXEC))
    return above_standard(_call("memfd_create", os.fsencode(name), 1))  # MFD_CLOEXEC


def process_file(pid: int) -> int:
    """Return a descriptor above 2 that becomes readable when the process ends, like pidfd_open(2). Raises OSError."""
    if hasattr(os, "pidfd_open"):
        return above_standard(os.pidfd_open(pid))
    return above_standard(_call("pidfd_open", pid, 0))


def _call(name: str, *arguments: object) -> int:
    """Call the C library. Pythons built for an older one, such as those of conda and uv, lack these functions."""
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, name):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    fd = int(getattr(library, name)(*arguments))
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return fd


def are_few() -> bool:
    """Whether the limit of this process allows only few open descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 0 <= soft < FEW


def allow_many() -> None:
    """Raise the limit of open descriptors as far as permitted, for a program: a library leaves it to its program.

    The usual limit of 1024 protects callers of select(2), which cannot use larger numbers; fffs does not call it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, MANY) if hard >= 0 else MANY
    if 0 <= soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def leaves(fd: int, count: int) -> bool:
    """Whether the limit of this process allows so many descriptors above one that was just opened."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft < 0 or fd + count < soft


def are_free(count: int) -> bool:
    """Whether so many more descriptors may be opened. True without /proc, where the open ones are unknown."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        return soft < 0 or len(os.listdir("/proc/self/fd")) + count <= soft
    except OSError:
        return True
