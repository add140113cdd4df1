"""Batched, verified reads: what the rest of fffs calls of ``fffs.native``'s engine.

Everything here may be called from any thread, and after a fork in parent and child. The backend (io_uring, Linux AIO or
plain reads) is chosen once, at the first use; which one it is changes speed, never a result. To import this module
opens nothing and cannot fail because of the environment.

Environment:
    FFFS_ENGINE: ``uring``, ``aio`` or ``pread``: try only this one (plain reads where the system refuses it).
    FFFS_THREADS: how many threads may work on a batch of cached data, the caller included. Default: one per core,
        at most four.
"""

from __future__ import annotations

import errno
import logging
import os
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from fffs.base import environment
from fffs.errors import EngineError
from fffs.native import ffi, lib

_log = logging.getLogger("fffs.engine")

NAMES: Final = environment.BACKENDS

CHECK_NONE: Final[int] = lib.FFFS_CHECK_NONE
CHECK_CRC32: Final[int] = lib.FFFS_CHECK_CRC32
CHECK_CRC32C: Final[int] = lib.FFFS_CHECK_CRC32C

BLOCK: Final[int] = lib.FFFS_BLOCK
"""Bytes of a block: the unit in which large records are read in parallel, and a packed folder stores checksums."""

REQUEST: Final = np.dtype(
    [
        ("offset", np.int64),
        ("length", np.int64),
        ("dest", np.uint64),
        ("fd", np.int32),
        ("check", np.uint32),
        ("expected", np.uint32),
        ("actual", np.uint32),
        ("status", np.int32),
        ("around", np.uint32),
        ("align", np.uint32),
        ("direct_fd", np.int32),
    ]
)
"""``fffs_request`` of ``contract.h``: one record to read. ``dest`` is an address, or 0 to check and drop the bytes."""

if ffi.sizeof("fffs_request") != REQUEST.itemsize:  # pragma: no cover
    raise EngineError("fffs.native.engine and the compiled fffs.native disagree; reinstall fffs")

_from_buffer = ffi.from_buffer
_read_batch = lib.fffs_read_batch
_REQUESTS = ffi.typeof("fffs_request[]")
_BYTES = ffi.typeof("uint8_t[]")


_chosen = False  # whether this process, or one that it was forked from, has a backend


def ready() -> None:
    """Do as the environment says, the first time: set the number of threads and choose the backend.

    To be called before C reads batches by itself; ``read_batch`` and ``name`` do it.

    Raises:
        UsageError: FFFS_ENGINE or FFFS_THREADS says what it cannot. The next call looks again.
    """
    if _chosen:
        return
    threads = environment.wanted_threads()
    if threads is not None:
        lib.fffs_engine_set_threads(threads)
    select()


def select(name: str | None = None) -> str:
    """Choose the backend for this process, and return the name of the one in use.

    Args:
        name: one of ``NAMES``; None: what FFFS_ENGINE names, or else the first of ``NAMES`` that this system allows. A
            named one that the system refuses is replaced by ``pread``. The ``fffs.engine`` logger has the reason, at
            level debug.

    Raises:
        UsageError: there is no backend of that name.
    """
    global _chosen
    name = environment.wanted_backend() if name is None else environment.check_backend(name)
    for candidate in NAMES if name is None else (name, "pread"):
        refused = lib.fffs_engine_select(candidate.encode())
        if refused == 0:
            _chosen = True
            return candidate
        _log.debug("backend %s refused: %s", candidate, os.strerror(-refused))
    raise EngineError("no backend can be used")  # pragma: no cover: plain reads are never refused


def name() -> str:
    """Name of the backend in use: one of ``NAMES``. Raises what ``ready`` raises."""
    ready()
    return str(ffi.string(lib.fffs_engine_name()).decode())


def crc32(data: Any, crc: int = 0) -> int:
    """The CRC-32 (zlib's) of any contiguous buffer's bytes, continuing crc. Runs without the GIL."""
    view = _from_buffer(_BYTES, data)
    return int(lib.fffs_crc32(crc, view, len(view)))


def crc32_combine(crc_a: int, crc_b: int, length_b: int) -> int:
    """The CRC-32 of A followed by B, from the CRC-32 of each and the length of B in bytes."""
    return int(lib.fffs_crc32_combine(crc_a, crc_b, length_b))


def checksum(check: int, data: Any) -> int:
    """The checksum of a kind, ``CHECK_*``, of any contiguous buffer's bytes; 0 for ``CHECK_NONE``."""
    if check == CHECK_NONE:
        return 0
    view = _from_buffer(_BYTES, data)
    compute = lib.fffs_crc32c if check == CHECK_CRC32C else lib.fffs_crc32
    return int(compute(0, view, len(view)))


def checksum_combine(check: int, crc_a: int, crc_b: int, length_b: int) -> int:
    """The checksum of a kind, ``CHECK_*``, of A followed by B; 0 for ``CHECK_NONE``."""
    if check == CHECK_CRC32C:
        return int(lib.fffs_crc32c_combine(crc_a, crc_b, length_b))
    return crc32_combine(crc_a, crc_b, length_b) if check == CHECK_CRC32 else 0


def take(size: int) -> npt.NDArray[np.uint8]:
    """Borrow pooled memory: a writable array of exactly size bytes, page-aligned, with unspecified content.

    It goes back to the pool when the last array, memoryview or other object that refers to it is gone, in any thread. A
    forked child has a copy of its own.

    Raises:
        MemoryError: there is no memory.
    """
    if size <= 0:
        if size < 0:
            raise ValueError(f"size must not be negative, not {size}")
        return np.empty(0, np.uint8)
    buffer = lib.fffs_buffer_take(size)
    if buffer == ffi.NULL:
        raise MemoryError(f"no memory for {size} bytes")
    # The array refers to the ffi.buffer, that to the ffi.gc, and that gives the memory back when it dies.
    return np.frombuffer(ffi.buffer(ffi.gc(buffer, lib.fffs_buffer_give), size), np.uint8)


def prefetch(requests: npt.NDArray[np.void]) -> None:
    """Ask the kernel to read what a contiguous 1-D array of ``REQUEST`` names, without waiting and without the GIL."""
    view = _from_buffer(_REQUESTS, requests)
    lib.fffs_prefetch(view, len(view))


def read_batch(requests: npt.NDArray[np.void]) -> bool:
    """Read and check all records of a contiguous 1-D array of ``REQUEST``, in parallel and without the GIL.

    Every ``fd`` must stay open and every ``dest`` be writable, length bytes long and alive until this returns; then
    nothing of the batch is in flight any more.

    Returns:
        True: all are good. False: at least one element's ``status`` is not 0 but ``-errno.EBADMSG`` (the checksum
        differs; ``actual`` is what came out), ``-errno.ENODATA`` (the file ends too early) or another -errno. Elements
        with status 0 are good.

    Raises:
        MemoryError: the batch could not be run for lack of memory.
        EngineError: it could not be run for another reason.
        UsageError: as ``ready``.
    """
    if not _chosen:
        ready()
    if requests.dtype is not REQUEST and requests.dtype != REQUEST:
        raise TypeError(f"requests must be an array of fffs.native.engine.REQUEST, not of {requests.dtype}")
    view = _from_buffer(_REQUESTS, requests, True)
    result = _read_batch(view, len(view))
    if result == 0:
        return True
    if result == -errno.EIO:
        return False
    if result == -errno.ENOMEM:
        raise MemoryError("no memory to read a batch")
    raise EngineError(f"cannot read a batch: {os.strerror(-result)}")
