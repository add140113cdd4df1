"""insert_room, move: make room at the beginning of a new file for a header whose size was not known before."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Final

from fffs.files.atomic_output import AtomicOutput
from fffs.files.pwrite import write_at

INSERT_RANGE: Final = 0x20  # of fallocate(2)
PIECE: Final = 8 << 20  # bytes that are copied at a time
LARGEST_BLOCK: Final = 1 << 16


def insert_room(file: AtomicOutput, size: int) -> int:
    """Insert at least ``size`` bytes at the beginning of a new file, without copying what follows.

    Returns the number of bytes: a multiple of the file system's block. 0: the file system cannot do that, as only ext4,
    XFS and F2FS can, and nothing has changed.
    """
    block = max(os.fstatvfs(file.fd).f_bsize, 4096)
    room = -(-size // block) * block
    if block > LARGEST_BLOCK:
        return 0
    try:
        _fallocate(file.fd, INSERT_RANGE, 0, room)
    except OSError:
        return 0
    return room


def move(file: AtomicOutput, begin: int, end: int, to: int) -> None:
    """Copy the bytes of a new file from begin to end so that they begin at ``to``, in pieces, and cut the file after
    them. The places may overlap.

    Raises OSError.
    """
    starts = range(begin, end, PIECE)
    for at in reversed(starts) if to > begin else starts:
        piece = memoryview(os.pread(file.fd, min(PIECE, end - at), at))
        if len(piece) < min(PIECE, end - at):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        write_at(file, [piece], at + to - begin)
    os.ftruncate(file.fd, end + to - begin)


def _fallocate(fd: int, mode: int, offset: int, size: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    call = getattr(library, "fallocate64", None) or library.fallocate
    if call(fd, mode, ctypes.c_int64(offset), ctypes.c_int64(size)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
