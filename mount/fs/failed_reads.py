"""Failed reads: counts all, and logs the first of each record, or of each source that changed."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from fffs.errors import SourceChangedError

_log = logging.getLogger("fffs.mount")


class Failures:
    """The failed reads of a mount. Not thread-safe."""

    def __init__(self, path_of: Callable[[int], bytes]) -> None:
        """path_of: returns a path of an inode from the root."""
        self._path_of = path_of
        self.records: set[int] = set()
        self._changed: set[str] = set()  # messages, one for each source that changed
        self.reads = 0

    def add(self, inode: int, record: int, error: Exception, path: bytes | None = None) -> None:
        """Count a failed read, and log it if it is the first of the record. path: of the inode, if known."""
        self.reads += 1
        if record in self.records:
            return
        self.records.add(record)
        if isinstance(error, SourceChangedError):
            if str(error) in self._changed:
                return  # it may have a million records, which are only counted
            self._changed.add(str(error))
        _log.error("%s: %s", os.fsdecode(self._path_of(inode) if path is None else path), error)

    def summary(self, reads: int = 0, is_incomplete: bool = False) -> str:
        """Return a line for the end of the log, or an empty string.

        reads: the number of failed reads, if larger than the count here. is_incomplete: not all of their records were
        added.
        """
        reads = max(reads, self.reads)
        if not reads:
            return ""
        records = f"{'more than ' if is_incomplete else ''}{len(self.records)} records"
        return f"{reads} reads failed, of {records}; `fffs verify` names all that are damaged"
