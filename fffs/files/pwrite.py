"""write_at: all of some buffers at an offset of a file, however much of it the system takes at a time."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

from fffs.base.failures import writing
from fffs.errors import WriteError

PIECES: Final = 1023
"""So many buffers at most: what one system call may be given, rounded down to a multiple of three."""


class Writable(Protocol):
    """A file that is open for writing; path is what messages call it."""

    @property
    def fd(self) -> int:
        """Its descriptor."""

    @property
    def path(self) -> str:
        """What messages call it."""


class NewFile(NamedTuple):
    """A file that is open for writing, and is not to be put in place later; the descriptor is another's to close."""

    fd: int
    path: str


def write_at(file: Writable, pieces: Sequence[Any], offset: int) -> int:
    """Write buffers of bytes one after another; how many bytes they have. Several threads may, to different places.

    Raises WriteError, and then nobody knows how much of it is there.
    """
    left = [memoryview(piece) for piece in pieces if len(piece)]
    position = offset
    while left:
        with writing(file.path):
            done = os.pwritev(file.fd, left, position)
        if not done:
            raise WriteError(errno.EIO, file.path)  # no file system should; trying again might never end
        position += done
        while left and done >= len(left[0]):
            done -= len(left.pop(0))
        if done:
            left[0] = left[0][done:]
    return position - offset
