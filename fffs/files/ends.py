"""The first and last bytes of a file that is not local, which are kept: headers and footers are read in small steps."""

from __future__ import annotations

import errno
from typing import Final

import numpy as np

from fffs.files.file import UInt8Array
from fffs.native.checksums import crc32

HEAD: Final = 64 * 1024  # bytes at the begin that are kept
TAIL: Final = 64 * 1024  # bytes at the end that are kept, once one of them was read: a pack's footer is there
SMALL: Final = 4096  # bytes; a smaller read takes these bytes of the end with it


class Ends:
    """Bytes that were read from both ends of a file. ``head`` and ``tail`` are set by the owner, at any time."""

    def __init__(self) -> None:
        self.head = self.tail = b""

    def copy(self, offset: int, dest: UInt8Array, size: int) -> bool:
        """Copy bytes that are kept. Returns False if not all of them are. size: that of the file."""
        for kept, begin in ((self.head, 0), (self.tail, size - len(self.tail))):
            if begin <= offset and offset + len(dest) <= begin + len(kept):
                dest[:] = np.frombuffer(kept, np.uint8)[offset - begin : offset - begin + len(dest)]
                return True
        return False

    def read_checked(self, offset: int, dest: UInt8Array, size: int, crc: int | None) -> tuple[int, int] | None:
        """As ``File.read_checked``, for bytes that are kept; None if not all of them are."""
        if not self.copy(offset, dest, size):
            return None
        actual = 0 if crc is None else crc32(dest)
        return (errno.EBADMSG if crc is not None and actual != crc else 0), actual
