"""Checks of one file: what reading it can make use of, and what is in it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from fffs.base.failures import reading
from fffs.base.text import human
from fffs.cli.checks.content_checks import check_content
from fffs.cli.checks.finding import Finding, good, hint
from fffs.errors import SourceNotFoundError, UsageError
from fffs.files.file_systems import is_of_this_machine, keeps_times
from fffs.native import ffi, lib


def check_file(path: str) -> Iterator[Finding]:
    """Yield what is known of a file.

    Raises:
        SourceNotFoundError, UsageError, ReadError: there is none, or it is no regular file, or cannot be opened.

    """
    with reading(path):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            raise SourceNotFoundError(f"{path}: no such file") from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{path}: not a regular file; name a file, such as a pack")
        yield good("size", human(status.st_size))
        yield _direct(fd)
        yield _place(fd)
    finally:
        os.close(fd)
    yield from check_content(path)


def _direct(fd: int) -> Finding:
    align = ffi.new("uint32_t *")
    opened = lib.fffs_open_direct(fd, align)
    if opened < 0:
        found = f"not possible: {os.strerror(-opened)}"
        return hint("O_DIRECT", found, "files are read through the page cache; use_direct has no effect")
    os.close(opened)
    return good("O_DIRECT", f"at multiples of {align[0]} bytes")


def _place(fd: int) -> Finding:
    if keeps_times(fd):
        return good("file system", "of this machine; a change of the file is noticed by its times")
    if is_of_this_machine(fd):
        return good("file system", "of this machine")
    cure = "a change of the file is noticed by asking its server again; copy it to a disk of this machine for speed"
    return hint("file system", "may be that of other machines, too", cure)
