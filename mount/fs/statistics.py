"""Counters of a mount: requests and latencies, which ``fffs stat`` shows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from fffs.layouts.view import View
from fffs.mount.fs.failed_reads import Failures
from fffs.mount.fs.latency import BUCKETS, bucket, percentile
from fffs.mount.fs.waiting import in_thread
from fffs.objects import transfer

# Of lookup and read, what is no question to the daemon is counted by the methods.
COUNTED = ("getattr", "readdir", "readlink", "open", "opendir", "statfs", "getxattr", "listxattr")
NATIVE = ("lookup", "getattr", "read", "readdir", "readlink", "forget", "other")


class Statistics:
    """Counts pyfuse3's requests, and collects all counters of the mount. Used by the thread of the event loop."""

    def __init__(self, view: View, native: Callable[[], dict[str, Any]] = dict) -> None:
        """native: returns the counters of the native threads, if there are any."""
        self.requests = dict.fromkeys(("lookup", "read", *COUNTED), 0)
        self._view, self._native = view, native
        self._began = time.monotonic()
        self._read_bytes = 0
        self._latency = [0] * BUCKETS
        self._verified = (-1, 0)
        self._records: int | None = None
        self._objects = any(file.file.is_remote for file in view.store.files)

    def count_read(self, began: int, size: int) -> None:
        """Count a read that is complete. began: its start, by ``perf_counter_ns``. size: bytes returned."""
        self.requests["read"] += 1
        self._read_bytes += size
        self._latency[bucket(time.perf_counter_ns() - began)] += 1

    async def collect(self, failures: Failures) -> dict[str, Any]:
        """Return all counters since the mount began, as ``fffs stat --json`` prints them."""
        native = self._native()
        answered = native.get("requests", {})
        reads = self.requests["read"] + answered.get("read", 0)
        latency = [a + b for a, b in zip(self._latency, native.get("read_latency_log2_ns", [0] * BUCKETS), strict=True)]
        return {
            "seconds": round(time.monotonic() - self._began, 3),
            "fastpath": bool(native),
            "threads": native.get("threads", 0),
            "native": {kind: answered.get(kind, 0) for kind in NATIVE},
            "python": dict(self.requests),
            "reads": reads,
            "read_bytes": self._read_bytes + native.get("read_bytes", 0),
            "cold_reads": native.get("cold_reads"),
            "reads_waiting": native.get("waiting"),
            "read_errors": max(failures.reads, native.get("read_errors", 0)),
            "bad_records": len(failures.records),
            "records": await self._count_records(),
            "verified_records": await self._count_verified(reads),
            "objects": asdict(transfer.totals()) if self._objects else None,
            "read_latency_log2_ns": latency,
            "read_latency_ns": {f"p{p:g}": percentile(latency, p) for p in (50, 90, 99, 99.9)},
        }

    async def _count_records(self) -> int:
        """Return how many records can be read. Counts once, in a thread."""
        if self._records is None:
            self._records = await in_thread(self._view.count_read, abandon=False)
        return self._records

    async def _count_verified(self, reads: int) -> int:
        """Return the number of verified records. Counts in a thread, and only if there were reads since last time."""
        if self._verified[0] != reads:
            count = await in_thread(self._view.store.count_verified, abandon=False)
            self._verified = reads, int(count)
        return self._verified[1]
