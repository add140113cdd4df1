"""Reports: finds out, beside the event loop, why native threads could not read records, and logs it."""

from __future__ import annotations

import errno
import functools
import logging
import math
from contextlib import suppress

import numpy as np
import trio

from fffs.base.text import plural
from fffs.errors import ReadError
from fffs.layouts.view import TreeView
from fffs.mount.fs.failed_reads import Failures
from fffs.mount.fs.waiting import in_thread

_log = logging.getLogger("fffs.mount")

# Limits of records that are explained at a time, and of their bytes: each is read again completely.
BATCH = 256
BATCH_BYTES = 64 << 20


class Reports:
    """Records whose failure is to be logged. Used by the thread of the event loop.

    ``waiting``: the number of records that are not logged yet. ``is_incomplete``: some never will be.
    """

    def __init__(self, view: TreeView, failures: Failures) -> None:
        self._view, self._failures = view, failures
        self._put, self._get = trio.open_memory_channel[tuple[int, int]](math.inf)
        self._progress = trio.Event()
        self.waiting, self.is_incomplete = 0, False

    def add(self, record: int, status: int) -> None:
        """Add a record that could not be read. status: -errno."""
        self.waiting += 1
        self._put.send_nowait((record, status))

    async def run(self) -> None:
        """Log the records that are added, until ``finish``."""
        async for first in self._get:
            bad, size = [first], self._view.store.length(first[0])
            with suppress(trio.WouldBlock, trio.EndOfChannel):
                while len(bad) < BATCH and size < BATCH_BYTES:
                    bad.append(self._get.receive_nowait())
                    size += self._view.store.length(bad[-1][0])
            try:
                for inode, path, record, error in await in_thread(functools.partial(self._explain, bad)):
                    self._failures.add(inode, record, error, path)
            except MemoryError:
                self.is_incomplete = True
                _log.error(
                    "%s could not be read; there is not enough memory to find out why", plural(len(bad), "record")
                )
            except Exception:
                self.is_incomplete = True
                _log.exception("%s could not be read; finding out why failed", plural(len(bad), "record"))
            self.waiting -= len(bad)
            self._progress.set()
            self._progress = trio.Event()

    async def finish(self, patience: float) -> None:
        """Wait until all records are logged. Gives up when the disk gives nothing for ``patience`` seconds."""
        self._put.close()
        while before := self.waiting:
            with trio.move_on_after(patience):
                await self._progress.wait()
            if self.waiting == before:
                return

    def _explain(self, bad: list[tuple[int, int]]) -> list[tuple[int, bytes, int, Exception]]:
        """Read each record again completely. Returns an inode and a path of it, its number, and the error."""
        store = self._view.store
        inodes = self._view.inodes_of(np.array([record for record, _ in bad]))
        paths = self._view.paths(inodes)
        errors = dict(store.verify(np.array([record for record, _ in bad])))
        return [
            (inode, path, record, errors.get(record) or self._error(record, status))
            for inode, path, (record, status) in zip(inodes, paths, bad, strict=True)
        ]

    def _error(self, record: int, status: int) -> Exception:
        """Return the exception for a record that can be read now."""
        if status == -errno.ESTALE:  # its source changed: no check of its bytes shows that
            return self._view.store.failure(record, status)
        return ReadError(-status, self._view.store.locate(record)[0].index.path)
