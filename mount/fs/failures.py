"""What could not be read: counted, and logged once per record however often it is asked for."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable

import numpy as np

from fffs.tree.tree import ROOT, Tree

_log = logging.getLogger("fffs.mount")


class Failures:
    """Failed reads of a mount. For one thread."""

    def __init__(self, path_of: Callable[[int], bytes]) -> None:
        """path_of: a path that leads to a node from the root."""
        self._path_of = path_of
        self.records: set[int] = set()
        self.reads = 0

    def add(self, node: int, record: int, error: Exception) -> None:
        """Count a failed read, and log it if it is the record's first."""
        self.reads += 1
        if record not in self.records:
            self.records.add(record)
            _log.error("%s: %s", os.fsdecode(self._path_of(node)), error)

    def summary(self) -> str:
        """A line for the end, or nothing."""
        if not self.reads:
            return ""
        return f"{self.reads} reads failed, of {len(self.records)} records; `fffs verify` names all that are damaged"


def path_of(tree: Tree, node: int) -> bytes:
    """A path that leads to a node from the root, the first of its hard links. Looks through all entries."""
    parts: list[bytes] = []
    while node != ROOT:
        entry = int(np.argmax(tree.entry_nodes == node))
        parts.append(tree.name(entry))
        node = _directory_of(tree, entry)
    return b"/".join(reversed(parts))


def _directory_of(tree: Tree, entry: int) -> int:
    """Directories share out the entries in the order of their numbers, so their first entries ascend."""
    directories = np.flatnonzero((tree.kinds == stat.S_IFDIR) & (tree.count > 0))
    return int(directories[np.searchsorted(tree.ref[directories], entry, side="right") - 1])
