"""Counters of a mount: who answered what, how fast; shown by the extended attribute ``user.fffs.stat`` of its root.

An attribute needs no file or socket to be made, protected and removed, reaches through containers, and is answered only
when the mount lives. It is not listed, and given only to the user who mounted, and to root.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import time
from collections.abc import Callable
from typing import Any

import pyfuse3
import trio

from fffs.layouts import Source
from fffs.mount.daemon.fastpath import FastPath
from fffs.mount.daemon.latency import BUCKETS, bucket, percentile
from fffs.mount.fs.refusals import ReadOnlyOperations
from fffs.mount.system import asking
from fffs.native import lib
from fffs.tree.tree import ROOT

STAT = asking.STAT.encode()
COUNTED = (
    "lookup", "getattr", "read", "readdir", "readlink", "open", "opendir", "statfs", "getxattr", "listxattr",
)  # fmt: skip
NATIVE = ("lookup", "getattr", "read", "readdir", "readlink", "forget", "other")


class Statistics:
    """Counts what pyfuse3 is asked, and answers for all of the mount. For the thread of the event loop."""

    def __init__(self, operations: ReadOnlyOperations, source: Source, native: FastPath | None) -> None:
        self._operations, self._source, self._native = operations, source, native
        self._began = time.monotonic()
        self._requests = dict.fromkeys(COUNTED, 0)
        self._read_bytes = 0
        self._latency = [0] * BUCKETS
        self._verified = (-1, 0)
        # pyfuse3 asks the instance: its own attributes come before those of the class.
        for name in COUNTED:
            setattr(operations, name, self._counted(name, getattr(operations, name)))
        operations.read = self._timed(operations.read)  # type: ignore[method-assign]
        operations.getxattr = self._answering(operations.getxattr)  # type: ignore[method-assign]

    # ------------------------------------------------------------ counting

    def _counted(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        counts = self._requests

        @functools.wraps(method)
        def count(*args: Any) -> Any:
            counts[name] += 1
            return method(*args)

        return count

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        latency, now = self._latency, time.perf_counter_ns

        @functools.wraps(method)
        async def read(*args: Any) -> Any:
            began = now()
            try:
                data = await method(*args)
                self._read_bytes += len(data)
                return data
            finally:
                latency[bucket(now() - began)] += 1

        return read

    def _answering(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        async def getxattr(inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
            if name != STAT or inode != ROOT + 1:
                return await method(inode, name, ctx)  # type: ignore[no-any-return]
            if ctx.uid not in (0, os.getuid()):
                raise pyfuse3.FUSEError(errno.EACCES)
            return json.dumps(await self.collect()).encode()

        return getxattr

    # ------------------------------------------------------------ answering

    async def collect(self) -> dict[str, Any]:
        """All counters since the mount began, as ``fffs stat --json`` prints them."""
        native = self._native.stats() if self._native else {}
        answered = native.get("requests", {})
        reads = self._requests["read"] + answered.get("read", 0)
        failures = self._operations.failures
        latency = [a + b for a, b in zip(self._latency, native.get("read_latency_log2_ns", [0] * BUCKETS), strict=True)]
        return {
            "seconds": round(time.monotonic() - self._began, 3),
            "fastpath": bool(native),
            "threads": native.get("threads", 0),
            "native": {kind: answered.get(kind, 0) for kind in NATIVE},
            "python": dict(self._requests),
            "reads": reads,
            "read_bytes": self._read_bytes + native.get("read_bytes", 0),
            "cold_reads": native.get("cold_reads"),
            "reads_waiting": native.get("waiting"),
            "read_errors": failures.reads if not native else max(failures.reads, native["read_errors"]),
            "bad_records": len(failures.records),
            "records": self._source.store.n,
            "verified_records": await self._count_verified(reads),
            "read_latency_log2_ns": latency,
            "read_latency_ns": {f"p{p:g}": percentile(latency, p) for p in (50, 90, 99, 99.9)},
        }

    async def _count_verified(self, reads: int) -> int:
        """Counted again only when there were reads since: all records are looked at, in a thread."""
        if self._verified[0] != reads:
            count = await trio.to_thread.run_sync(lib.fffs_store_count_verified, self._source.store.native)
            self._verified = reads, int(count)
        return self._verified[1]
