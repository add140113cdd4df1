"""Connects the fast path: native threads between the kernel and pyfuse3, their log lines and their counters.

``fffs/native/fastpath_workers.c`` has the threads. pyfuse3 stays a complete file system: instead of the device it gets
one end of a socket pair, and answers what the threads forward. If the threads are not wanted or cannot be started, it
gets the device itself.
"""

from __future__ import annotations

import logging
import os
import socket
from contextlib import suppress
from mmap import PAGESIZE
from typing import Any

import pyfuse3
import trio

from fffs.errors import MountError
from fffs.layouts.view import TreeView, View
from fffs.mount.daemon.handshake import Device
from fffs.mount.daemon.reports import Reports
from fffs.mount.fs.attributes import FOREVER
from fffs.mount.fs.failed_reads import Failures
from fffs.mount.fs.reading import LARGEST_READ
from fffs.mount.options import MountOptions
from fffs.mount.system.mounts import mounts
from fffs.native import ffi, lib
from fffs.records.source_file import disks_of

_log = logging.getLogger("fffs.mount")

KINDS = ("lookup", "getattr", "read", "readdir", "readlink", "forget", "other", "forwarded")
# At least two, so that one request does not wait for another's checksum. More than sixteen only wait for each other:
# the kernel hands out requests under one lock.
FEWEST_THREADS, MOST_THREADS = 2, 16
# <asm/socket.h>; what unix_dgram_sendmsg() keeps for itself; struct fuse_out_header.
_SO_SNDBUFFORCE, _PACKET, _REPLY_HEAD = 32, 32, 16
# How long the end waits for reads from a disk that does not answer.
PATIENCE = 2.0

# File systems whose files another machine, or another program, serves. There the threads would mostly wait.
REMOTE = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse", "fuseblk", "glusterfs", "gpfs", "lustre", "nfs", "nfs4"}
    | {"ocfs2", "smb3", "smbfs", "virtiofs"}
)


def connect(fuse: int, view: View, options: MountOptions, debug: bool = False) -> FastPath | Device:
    """Return what pyfuse3 serves: the fast path, or the device itself; then a line in the log says why.

    Takes the descriptor over.

    Raises:
        OSError: too many files are open. The caller still owns the descriptor.

    """
    if options.fastpath is False:
        return Device(fuse)
    try:
        if not isinstance(view, TreeView):
            _log.info("without the fast path: its threads serve trees only, and this source is shown row by row")
            return Device(fuse)
        if obstacle := find_obstacle(view, options, debug):
            _log.info("without the fast path: %s", obstacle)
            return Device(fuse)
        return FastPath(fuse, view, options)
    except (MountError, OSError, MemoryError) as error:
        _log.warning("without the fast path: %s", getattr(error, "strerror", None) or error)
        return Device(fuse)


def find_obstacle(view: TreeView, options: MountOptions, debug: bool) -> str:
    """Return why this mount cannot have the fast path, or an empty string."""
    if debug:
        return "every request is to be logged, and native threads do not log requests"
    kinds: dict[int, str] = {}
    for file in view.store.files:
        if file.file.descriptor == -1:
            return f"{file.index.path} is not a file of this machine"
        device = file.file.device
        if file.file.descriptor < 0:
            continue  # an object: what its cache does not have is fetched by threads of its own
        if options.fastpath is None and device not in kinds:
            kinds[device] = file_system_of(device)
        kind = kinds.get(device, "")
        if kind.split(".")[0] in REMOTE:
            return f"{file.index.path} is on a file system of type {kind}; -o fastpath=on uses it nevertheless"
    return ""


def file_system_of(device: int) -> str:
    """Return the type of a mounted file system by its device number; empty if no mount has this number, as in btrfs."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    return next((mount.type for mount in mounts() if mount.device == wanted), "")


def make_room(its: socket.socket) -> int:
    """Raise the socket's limit for packets as far as the system allows. Returns how many bytes of a file a reply may
    have: the reader would wait for ever for a larger reply, which cannot be sent.
    """
    for option in (_SO_SNDBUFFORCE, socket.SO_SNDBUF):
        with suppress(OSError):  # only root may set the first option
            its.setsockopt(socket.SOL_SOCKET, option, 2 * LARGEST_READ)
            break
    room = its.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) - _PACKET - _REPLY_HEAD
    return max(min(room // PAGESIZE * PAGESIZE, LARGEST_READ), PAGESIZE)


class FastPath:
    """Native threads that serve a FUSE descriptor, which they take over. Used by the thread of the event loop.

    Raises:
        MountError: the system refuses threads or memory. The caller still owns the descriptor, and nothing was read
            from it.

    """

    def __init__(self, fuse: int, view: TreeView, options: MountOptions) -> None:
        self._fuse, self._view = fuse, view
        tree, store, native = view.tree.native, view.store.native, ffi.new("fffs_fastpath **")
        self._ours, self._its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        status = lib.fffs_fastpath_start(self._configure(options), tree, store, native)
        if status != 0:
            self._ours.close()
            self._its.close()
            raise MountError(f"the native threads cannot be started: {os.strerror(-status)}")
        self._native: Any = native[0]
        self.number = self._its.detach()
        """The descriptor that libfuse gets as ``/dev/fd/N`` and closes."""
        self._ended = trio.Event()
        self._reports: Reports | None = None
        self.connected = trio.Event()
        """Set when the mount answers requests."""

    def _configure(self, options: MountOptions) -> Any:
        config = ffi.new("fffs_fastpath_config *")
        cores, lanes = len(os.sched_getaffinity(0)), disks_of(self._view.store.files)
        self._lanes = config.lanes = ffi.new("uint32_t[]", lanes)
        config.fuse_fd, config.library_fd = self._fuse, self._ours.fileno()
        config.threads = options.threads or min(max(cores, FEWEST_THREADS), MOST_THREADS)
        remote = any(file.file.is_remote for file in self._view.store.files)  # their caches have a lane of their own
        config.cold_threads = lib.FFFS_FAST_LANE * (max(lanes, default=0) + 1 + remote)
        config.max_read = LARGEST_READ
        if self._view.forwarded is not None:
            config.forwarded = ffi.from_buffer("uint8_t[]", self._view.forwarded)
            config.max_read = make_room(self._its)
        config.uid = os.getuid() if options.uid is None else options.uid
        config.gid = os.getgid() if options.gid is None else options.gid
        config.mode_mask = options.umask
        config.timeout = int(FOREVER)
        config.max_readahead = options.readahead * 1024
        config.verify = options.verify
        config.readdirplus_auto = options.readdirplus == "auto"
        return config

    async def connect(self) -> None:
        """Do nothing: the threads pass the first messages on like all others."""

    async def watch(self, failures: Failures) -> None:
        """Announce the connection to the kernel, log failed reads, and end pyfuse3's loop when the connection ends."""
        fd = lib.fffs_fastpath_event_fd(self._native)
        record, status = ffi.new("uint64_t *"), ffi.new("int32_t *")
        self._reports = Reports(self._view, failures)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._reports.run)
            while not lib.fffs_fastpath_ended(self._native):
                await trio.lowlevel.wait_readable(fd)
                while lib.fffs_fastpath_next_bad(self._native, record, status):
                    self._reports.add(int(record[0]), int(status[0]))
                if lib.fffs_fastpath_connected(self._native):
                    self.connected.set()
            await self._reports.finish(PATIENCE)
            nursery.cancel_scope.cancel()
        self._ended.set()
        # libfuse notices the end by ENODEV from its device; a socket never gives that error.
        pyfuse3.terminate()

    async def ended(self) -> None:
        """Wait until the connection to the kernel has ended: after the last unmount."""
        await self._ended.wait()

    def count_failures(self) -> tuple[int, bool]:
        """Return how many reads failed, and whether some of their records were not logged."""
        stats = self.stats()
        untold = self._reports is not None and (self._reports.waiting > 0 or self._reports.is_incomplete)
        return stats["read_errors"], stats["untold"] > 0 or untold

    def stats(self) -> dict[str, Any]:
        """Return the counters since the mount began; latencies are counted by power of two of a nanosecond."""
        stats = ffi.new("fffs_fastpath_stats_t *")
        lib.fffs_fastpath_stats(self._native, stats)
        return {
            "requests": {kind: int(stats.requests[k]) for k, kind in enumerate(KINDS)},
            "read_bytes": int(stats.read_bytes),
            "read_errors": int(stats.read_errors),
            "untold": int(stats.untold),
            "cold_reads": int(stats.cold_reads),
            "read_latency_log2_ns": list(stats.read_latency),
            "waiting": int(stats.waiting),
            "threads": int(stats.threads),
            "cold_threads": int(stats.cold_threads),
        }

    def close(self) -> bool:
        """End the threads and the connection. Returns False if threads still wait for a disk: then exit the process."""
        ended = self._native is None or lib.fffs_fastpath_stop(self._native, PATIENCE) == 0
        self._native = None
        self._ours.close()
        if self._fuse >= 0:
            os.close(self._fuse)
            self._fuse = -1
        return ended
