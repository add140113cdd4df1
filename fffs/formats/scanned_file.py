"""ScannedFile: the bytes of a file for a scan in C, which reads from a descriptor; those of an object are fetched."""

from __future__ import annotations

import errno
import logging
import mmap
import os
from typing import Any, Final

import numpy as np

from fffs.base.descriptors import memory_file
from fffs.base.long_reads import report
from fffs.base.withblock import Closing
from fffs.errors import ReadError
from fffs.files.dirfd import close
from fffs.files.file import File
from fffs.files.pages import free, mapped
from fffs.native import engine

_log = logging.getLogger("fffs.objects")

_REQUEST: Final = 8 << 20  # bytes of a request
_ROUND: Final = 8
"""Requests at a time."""


class ScannedFile(Closing):
    """A descriptor with the bytes of a file. For an object it is a file in memory that has a range of them.

    ``fd`` ends where the range ends, so that a scan which comes there finds the end of a file: ``load`` then fetches
    more, and frees what lies before.
    """

    def __init__(self, file: File) -> None:
        """file: stays the caller's."""
        self.name, self._file = file.name, file
        self.fd = file.descriptor
        self._own = self.fd < 0
        self._begin = self._end = 0
        if self._own:
            self.fd = memory_file("fffs-scan")
            _log.info("%s: reading all of it, %d bytes, to find its records", file.name, file.size)

    @property
    def has_more(self) -> bool:
        """Whether bytes of the file are not loaded yet."""
        return self._own and self._end < self._file.size

    def load(self, position: int, waits: bool, needed: int = 0) -> None:
        """Fetch the next bytes unless the scan can go on. Those before a position are not needed any more.

        waits: whether the scan has come to the end of the range. needed: an offset; bytes between the range and it are
        not needed.
        """
        if not self.has_more or (position < self._end and not waits):
            return
        self._free(position)
        begin = max(self._end, min(needed, self._file.size))
        end = min(begin + _REQUEST * _ROUND, self._file.size)
        os.ftruncate(self.fd, end)
        first = begin - begin % mmap.ALLOCATIONGRANULARITY
        with mapped(self.fd, first, end, write=True) as pages:
            self._fetch(np.frombuffer(pages, np.uint8)[begin - first :], begin)
        self._end = end
        report(self.name, end, self._file.size)

    def _free(self, position: int) -> None:
        """Free the memory of what lies before a position."""
        stop = min(position, self._end)
        stop -= stop % mmap.ALLOCATIONGRANULARITY
        if stop > self._begin:
            free(self.fd, self._begin, stop)
            self._begin = stop

    def _fetch(self, dest: Any, offset: int) -> None:
        starts = np.arange(0, len(dest), _REQUEST)
        requests = np.zeros(len(starts), engine.REQUEST)
        requests["fd"], requests["offset"] = self._file.descriptor, offset + starts
        requests["length"] = np.minimum(len(dest) - starts, _REQUEST)
        requests["dest"], requests["around"] = dest.ctypes.data + starts, _REQUEST
        if not self._file.read_batch(requests):
            status = -int(requests["status"][requests["status"] != 0][0])
            raise self._file.failure(status, "a frame") if status else ReadError(errno.EIO, self.name)

    def close(self) -> None:
        """Free the memory."""
        if self._own:
            close(self.fd)
