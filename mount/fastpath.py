"""The fast path's hook-up: native threads between the kernel and pyfuse3, their log lines and their counters.

What they do is in ``fffs/native/fastpath.c``. pyfuse3 stays the complete file system: it is given one end of a socket
pair for its device and answers whatever the threads forward.
"""

from __future__ import annotations

import logging
import os
import socket
from typing import Any

import numpy as np
import pyfuse3
import trio

from fffs.errors import MountError, ReadError
from fffs.layouts import Source
from fffs.mount.attributes import FOREVER
from fffs.mount.failures import Failures
from fffs.mount.options import MountOptions
from fffs.native import ffi, lib

_log = logging.getLogger("fffs.mount")

KINDS = ("lookup", "getattr", "read", "readdir", "readlink", "forget", "other", "forwarded")
# More than this many threads only wait for each other: the kernel hands out requests under one lock.
MOST_THREADS = 16
# Reads that may wait for a disk at a time: as deep a queue as a fast disk wants.
COLD_THREADS = 64
# How long the end waits for reads from a disk that does not answer.
PATIENCE = 2.0


class FastPath:
    """Native threads that serve a FUSE descriptor, which they own from now on. For the thread of the event loop."""

    def __init__(self, fuse: int, source: Source, options: MountOptions) -> None:
        self._fuse, self._source = fuse, source
        self._ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.number = its.detach()
        """What libfuse is given as ``/dev/fd/N``; it closes it."""
        self._native: Any = None
        self._config = ffi.new("fffs_fastpath_config *")
        self._config.fuse_fd, self._config.library_fd = fuse, self._ours.fileno()
        self._config.threads = options.threads or min(len(os.sched_getaffinity(0)), MOST_THREADS)
        self._config.cold_threads = COLD_THREADS
        self._config.uid = os.getuid() if options.uid is None else options.uid
        self._config.gid = os.getgid() if options.gid is None else options.gid
        self._config.mode_mask = options.umask
        self._config.timeout = int(FOREVER)
        self._config.max_readahead = options.readahead * 1024
        self._config.verify = options.verify

    async def connect(self) -> None:
        """Start the threads.

        Raises:
            MountError: the system refuses.

        """
        native = ffi.new("fffs_fastpath **")
        status = lib.fffs_fastpath_start(self._config, self._source.tree.native, self._source.store.native, native)
        if status != 0:
            raise MountError(f"cannot start the threads of the fast path: {os.strerror(-status)}")
        self._native = native[0]

    async def watch(self, failures: Failures) -> None:
        """Log what the threads could not read, and end pyfuse3's loop when the kernel has ended the connection."""
        fd = lib.fffs_fastpath_event_fd(self._native)
        record, status = ffi.new("uint64_t *"), ffi.new("int32_t *")
        while not lib.fffs_fastpath_ended(self._native):
            await trio.lowlevel.wait_readable(fd)
            while lib.fffs_fastpath_next_bad(self._native, record, status):
                number = int(record[0])
                error = await trio.to_thread.run_sync(self._reason, number, int(status[0]), abandon_on_cancel=True)
                node = int(np.flatnonzero(self._files & (self._source.tree.ref == number))[0])
                failures.add(node, number, error)
        # libfuse knows this by ENODEV from its device, which a socket never says.
        pyfuse3.terminate()

    @property
    def _files(self) -> Any:
        return (self._source.tree.mode & 0o170000) == 0o100000

    def _reason(self, record: int, status: int) -> Exception:
        """The exception that says what is wrong: reading the record again in full tells."""
        again = self._source.store.verify(np.array([record]))
        return again[0][1] if again else ReadError(-status, self._source.store.locate(record)[0].index.path)

    def stats(self) -> dict[str, Any]:
        """Counters since the mount; latencies in powers of two of a nanosecond."""
        stats = ffi.new("fffs_fastpath_stats_t *")
        lib.fffs_fastpath_stats(self._native, stats)
        return {
            "requests": {kind: int(stats.requests[k]) for k, kind in enumerate(KINDS)},
            "read_bytes": int(stats.read_bytes),
            "read_errors": int(stats.read_errors),
            "cold_reads": int(stats.cold_reads),
            "read_latency_log2_ns": list(stats.read_latency),
        }

    def close(self) -> bool:
        """End the threads and the connection. False: some still wait for a disk, and the process must end."""
        ended = self._native is None or lib.fffs_fastpath_stop(self._native, PATIENCE) == 0
        self._native = None
        self._ours.close()
        if self._fuse >= 0:
            os.close(self._fuse)
            self._fuse = -1
        return ended
