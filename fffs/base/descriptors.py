"""Numbers of open files: none of ours is that of a standard stream, which a program may have closed.

What is opened next gets the lowest free number. Were it 2, messages of C libraries would be written into the file, and
whoever leaves a terminal as daemons do would close it. Only io_uring's rings keep what number they get: nothing can be
written into them by it.
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


def open_standard_streams() -> None:
    """Have /dev/null in the place of each that is closed. For programs, before they open anything."""
    for fd, (name, mode) in enumerate(_STREAMS):
        try:
            os.fstat(fd)
        except OSError:
            with suppress(OSError):  # there is no /dev/null: then it stays closed
                os.open(os.devnull, os.O_RDWR)  # gets this number, the lowest that is free
                os.set_inheritable(fd, True)
        if getattr(sys, name) is None:  # it was closed when the interpreter began
            with suppress(OSError):
                setattr(sys, name, os.fdopen(fd, mode, errors="backslashreplace", closefd=False))


def describe_shortage(error: OSError) -> str:
    """One line, if descriptors are what was missing."""
    if error.errno == errno.EMFILE:
        return f"{error.strerror}; allow this process more of them (ulimit -n)"
    return str(error.strerror) if error.errno == errno.ENFILE else ""


def above_standard(fd: int) -> int:
    """The same open file by a number that is no standard stream's. Takes over fd. Raises OSError."""
    if fd >= LOWEST:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, LOWEST)
    finally:
        os.close(fd)


def duplicate(fd: int) -> int:
    """As dup(2), by such a number. Raises OSError."""
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, LOWEST)


def pipe() -> tuple[int, int]:
    """As pipe(2), by such numbers: the reading and the writing end. Raises OSError."""
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
    """A new file in memory, as memfd_create(2), by such a number. Raises OSError."""
    if hasattr(os, "memfd_create"):
        return above_standard(os.memfd_create(name, os.MFD_CLOEXEC))
    return above_standard(_call("memfd_create", os.fsencode(name), 1))  # MFD_CLOEXEC


def process_file(pid: int) -> int:
    """A descriptor that can be read when the process has ended, as pidfd_open(2), by such a number. Raises OSError."""
    if hasattr(os, "pidfd_open"):
        return above_standard(os.pidfd_open(pid))
    return above_standard(_call("pidfd_open", pid, 0))


def _call(name: str, *arguments: object) -> int:
    """Of the C library: a Python that was built for an older one, as those of conda and uv, lacks what this one has."""
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, name):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    fd = int(getattr(library, name)(*arguments))
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return fd


def are_few() -> bool:
    """Whether this process may have few descriptors open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 0 <= soft < FEW
