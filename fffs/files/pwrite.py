"""write_at: writes buffers completely at an offset of a file, in as many system calls as needed."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

from fffs.base.failures import writing
from fffs.errors import WriteError

PIECES: Final = 1023
"""The most buffers per system call: IOV_MAX, rounded down to a multiple of three."""


class Writable(Protocol):
    """A file that is open for writing."""

    @property
    def fd(self) -> int:
        """The descriptor."""

    @property
    def path(self) -> str:
        """The name in messages."""


class NewFile(NamedTuple):
    """A file that is open for writing and already in place. The caller closes the descriptor."""

    fd: int
    path: str


def write_at(file: Writable, pieces: Sequence[Any], offset: int) -> int:
    """Write buffers one after another and return their size in bytes. Threads may write to different places at once.

    Raises WriteError; an unknown part is then written.
    """
    left = [memoryview(piece) for piece in pieces if len(piece)]
    position = offset
    while left:
        with writing(file.path):
            done = os.pwritev(file.fd, left, position)
        if not done:
            raise WriteError(errno.EIO, file.path)  # wrote nothing: retrying might never end
        position += done
        while left and done >= len(left[0]):
            done -= len(left.pop(0))
        if done:
            left[0] = left[0][done:]
    return position - offset
