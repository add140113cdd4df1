"""Answers the questions of ``fffs.mount.system.questions``: each answer is a file of its own that never changes."""

from __future__ import annotations

import errno
import itertools
import json
import os
import stat
from collections import OrderedDict
from typing import Any, NamedTuple

import pyfuse3

from fffs.layouts.view import ROOT_INODE, View
from fffs.mount.fs.attributes import PREFIX, Presenter
from fffs.mount.fs.failed_reads import Failures
from fffs.mount.fs.statistics import Statistics
from fffs.mount.system.questions import DAEMON, ENTRY, STAT, identity
from fffs.native import lib

FIRST = int(lib.FFFS_ANSWER_INODES)
"""Answers have the inode numbers from here on; views have smaller ones."""

KEPT = 256
"""How many answers are kept. The kernel does not tell when an older one is no longer open; it is then stale."""


class _Answer(NamedTuple):
    content: bytes
    entry: pyfuse3.EntryAttributes


class Answers:
    """The answers that were asked for. Used by the thread of the event loop.

    Raises:
        pyfuse3.FUSEError: ENAMETOOLONG: it is not a question; ENOENT: there is no such name; ESTALE.

    """

    def __init__(self, view: View, presenter: Presenter, statistics: Statistics, failures: Failures) -> None:
        self._view, self._presenter, self._statistics, self._failures = view, presenter, statistics, failures
        self._inodes = itertools.count(FIRST)
        self._kept: OrderedDict[int, _Answer] = OrderedDict()

    async def lookup(self, parent: int, question: bytes) -> pyfuse3.EntryAttributes:
        """Return the attributes of a new answer, whose permissions are those of what the question is about."""
        if question.startswith(ENTRY):
            return self._tell_entry(parent, question.removeprefix(ENTRY))
        if parent != ROOT_INODE or question not in (DAEMON, STAT):
            raise pyfuse3.FUSEError(errno.ENAMETOOLONG)
        if question == DAEMON:
            return self._keep(identity(), 0o444)
        counters = await self._statistics.collect(self._failures)
        # The user who mounted, whoever is shown as the owner of the files.
        return self._keep(json.dumps(counters).encode(), 0o400, os.getuid())

    def _tell_entry(self, parent: int, name: bytes) -> pyfuse3.EntryAttributes:
        inode = self._view.lookup(parent, name) if name else parent
        if inode is None:
            raise pyfuse3.FUSEError(errno.ENOENT)
        mode = self._presenter.entry(inode, self._view.attributes(inode)).st_mode
        record = self._view.record(inode)
        facts: dict[str, Any] = {
            attribute.removeprefix(PREFIX).decode(): os.fsdecode(self._presenter.value(inode, record, attribute))
            for attribute in self._presenter.names(inode, record)
        }
        return self._keep(json.dumps(facts).encode(), mode & 0o444)

    def _keep(self, content: bytes, mode: int, uid: int | None = None) -> pyfuse3.EntryAttributes:
        inode = next(self._inodes)
        entry = self._presenter.entry(inode, (stat.S_IFREG | mode, 1, len(content), 0, True))
        entry.entry_timeout = 0  # the next question gets another answer
        if uid is not None:
            entry.st_mode, entry.st_uid = stat.S_IFREG | mode, uid
        self._kept[inode] = _Answer(content, entry)
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return entry

    def _find(self, inode: int) -> _Answer:
        if inode not in self._kept:
            raise pyfuse3.FUSEError(errno.ESTALE)
        return self._kept[inode]

    def attributes(self, inode: int) -> pyfuse3.EntryAttributes:
        """Return what stat(2) shows of an answer."""
        return self._find(inode).entry

    def read(self, inode: int, start: int, size: int) -> bytes:
        """Return bytes of an answer."""
        return self._find(inode).content[start : start + size]
