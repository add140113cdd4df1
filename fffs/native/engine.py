"""Batched, verified reads: the Python interface of the engine in ``fffs.native``.

All functions may be called from any thread, and after a fork in parent and child. The backend (io_uring, Linux AIO or
plain reads) is chosen once, at the first use; it affects speed, never a result. Importing this module opens nothing and
cannot fail because of the environment.

Environment:
    FFFS_ENGINE: ``uring``, ``aio`` or ``pread``: use only this one, or plain reads if the system refuses it.
    FFFS_THREADS: how many threads may work on a batch of cached data, the caller included. Default: one per core,
        at most four.
"""

from __future__ import annotations

import errno
import logging
import os
from typing import Final

import numpy as np
import numpy.typing as npt

from fffs.base import environment
from fffs.errors import EngineError
from fffs.native import ffi, lib

_log = logging.getLogger("fffs.engine")

NAMES: Final = environment.BACKENDS

BLOCK: Final[int] = lib.FFFS_BLOCK
"""Bytes of a block: the unit of parallel reads of large records, and of a packed folder's block checksums."""

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
    raise EngineError("fffs.native.engine does not match the compiled fffs.native; reinstall fffs")

_from_buffer = ffi.from_buffer
_read_batch = lib.fffs_read_batch
_REQUESTS = ffi.typeof("fffs_request[]")
_BYTES = ffi.typeof("uint8_t[]")


_chosen = False  # whether this process, or one that it was forked from, has chosen a backend


def ready() -> None:
    """At the first call, set the number of threads and choose the backend, as the environment says.

    Must be called before C reads batches by itself; ``read_batch`` and ``name`` call it.

    Raises:
        UsageError: FFFS_ENGINE or FFFS_THREADS is invalid. The next call reads them again.
    """
    if _chosen:
        return
    threads = environment.wanted_threads()
    if threads is not None:
        lib.fffs_engine_set_threads(threads)
    select()


def select(name: str | None = None) -> str:
    """Choose the backend of this process, and return the name of the one in use.

    Args:
        name: one of ``NAMES``; None: the one in FFFS_ENGINE, or else the first of ``NAMES`` that the system allows. If
            the system refuses a named one, ``pread`` is used. The logger ``fffs.engine`` gets the reason, at level
            debug.

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
    """Return the name of the backend in use: one of ``NAMES``. Raises the same as ``ready``."""
    ready()
    return str(ffi.string(lib.fffs_engine_name()).decode())


def take(size: int) -> npt.NDArray[np.uint8]:
    """Return pooled memory: a writable array of exactly size bytes, page-aligned, with unspecified content.

    It goes back to the pool when the last array, memoryview or other object that refers to it is freed, in any thread.
    A forked child has its own copy.

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
    # The array refers to the ffi.buffer, which refers to the ffi.gc, whose finalizer gives the memory back.
    return np.frombuffer(ffi.buffer(ffi.gc(buffer, lib.fffs_buffer_give), size), np.uint8)


def prefetch(requests: npt.NDArray[np.void]) -> None:
    """Ask the kernel to read the ranges of a 1-D contiguous array of ``REQUEST``; does not wait or hold the GIL."""
    view = _from_buffer(_REQUESTS, requests)
    lib.fffs_prefetch(view, len(view))


def read_batch(requests: npt.NDArray[np.void]) -> bool:
    """Read and check all records of a contiguous 1-D array of ``REQUEST``, in parallel and without the GIL.

    Every ``fd`` must stay open, and every ``dest`` must stay writable memory of ``length`` bytes, until this returns.
    Then no read of the batch is in flight.

    Returns:
        True: all are good. False: at least one element's ``status`` is not 0 but ``-errno.EBADMSG`` (the checksum
        differs; ``actual`` is what came out), ``-errno.ENODATA`` (the file ends too early) or another -errno. Elements
        with status 0 are good.

    Raises:
        MemoryError: the batch could not be run for lack of memory.
        EngineError: the batch could not be run for another reason.
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
