"""Numbers of open files: none of ours is that of a standard stream, which a program may have closed.

What is opened next gets the lowest free number. Were it 2, messages of C libraries would be written into the file, and
whoever leaves a terminal as daemons do would close it. Only io_uring's rings keep what number they get: nothing can be
written into them by it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from contextlib import suppress

LOWEST = 3
_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


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
