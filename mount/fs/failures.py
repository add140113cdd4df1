"""What could not be read: counted, and logged once per record however often it is asked for."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

_log = logging.getLogger("fffs.mount")


class Failures:
    """Failed reads of a mount. For one thread."""

    def __init__(self, path_of: Callable[[int], bytes]) -> None:
        """path_of: a path that leads to an inode from the root."""
        self._path_of = path_of
        self.records: set[int] = set()
        self.reads = 0

    def add(self, inode: int, record: int, error: Exception, path: bytes | None = None) -> None:
        """Count a failed read, and log it if it is the record's first. path: where that is known already."""
        self.reads += 1
        if record not in self.records:
            self.records.add(record)
            _log.error("%s: %s", os.fsdecode(self._path_of(inode) if path is None else path), error)

    def summary(self, reads: int = 0, is_incomplete: bool = False) -> str:
        """A line for the end, or nothing. reads: how many failed, if more than are counted here. is_incomplete: some
        of their records are not.
        """
        reads = max(reads, self.reads)
        if not reads:
            return ""
        records = f"{'more than ' if is_incomplete else ''}{len(self.records)} records"
        return f"{reads} reads failed, of {records}; `fffs verify` names all that are damaged"
