"""Reads batches of ranges of objects: the Python interface of ``native/remote.c``.

All functions may be called from any thread, and after a fork in parent and child. libcurl is loaded at the first call.
"""

from __future__ import annotations

import errno
import os
import threading
import urllib.parse
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from fffs.base.stopping import current_flag
from fffs.errors import EngineError
from fffs.native import ffi, lib
from fffs.objects.http_settings import follow_settings
from fffs.objects.proxies import proxy_of

_SLICE: Final = 0.1  # seconds between two checks for Ctrl-C
_REQUESTS: Final = ffi.typeof("fffs_request[]")


@dataclass(frozen=True)
class State:
    """What is known of an object. ``size`` is -1 if that is unknown, texts are empty.

    ``refused``: requests wait for another URL. ``status`` and ``text`` belong to the last failure: the HTTP status, or
    0, and what the server or libcurl said.
    """

    size: int
    etag: str
    modified: str
    requests: int
    retries: int
    fetched: int
    hits: int
    refetched: int
    refused: bool
    status: int
    text: str


def open_object(url: str, stored: bool) -> int:
    """Make an object of an URL, which is never shown, and return its number. Raises EngineError, UsageError.

    stored: whether a store has it, not a web server; see ``fffs_object_set_stored``.
    """
    follow_settings(at_once=True)
    proxy_of(urllib.parse.urlsplit(url), os.environ)  # libcurl repeats what it does not understand
    number = _checked(int(lib.fffs_object_open(url.encode("utf-8", "surrogateescape"))))
    if stored:
        lib.fffs_object_set_stored(number)
    return number


def close_object(number: int) -> None:
    """Forget an object. Its number may be reused."""
    lib.fffs_object_close(number)


def expect_version(number: int, etag: str, modified: str, size: int) -> None:
    """Set the version that all answers must be of; see ``fffs_object_expect``."""
    _checked(lib.fffs_object_expect(number, etag.encode("latin-1"), modified.encode("latin-1"), size))


def set_url(number: int, url: str) -> None:
    """Replace the URL of an object, for requests that begin later."""
    _checked(lib.fffs_object_set_url(number, url.encode("utf-8", "surrogateescape")))


def set_renewable(number: int) -> None:
    """Have refused requests wait for ``set_url``; see ``fffs_object_set_renewable``."""
    _checked(lib.fffs_object_set_renewable(number))


def state_of(number: int) -> State:
    """Return what is known of an object."""
    state = ffi.new("fffs_object_state *")
    _checked(lib.fffs_object_look(number, state))
    return State(
        state.size,
        ffi.string(state.etag).decode("latin-1"),
        ffi.string(state.modified).decode("latin-1"),
        state.requests,
        state.retries,
        state.bytes,
        state.hits,
        state.refetched,
        bool(state.refused),
        state.http_status,
        ffi.string(state.text).decode("utf-8", "replace"),
    )


def is_refused(number: int) -> bool:
    """Return ``State.refused`` alone: a mount of many parts asks each of them every second."""
    state = ffi.new("fffs_object_state *")
    _checked(lib.fffs_object_look(number, state))
    return bool(state.refused)


@dataclass(frozen=True)
class Totals:
    """What reading objects cost this process: see ``fffs_object_totals``. Bytes, or numbers of what is counted."""

    requests: int
    retries: int
    errors: int
    fetched: int
    asked: int
    hits: int
    damaged_records: int
    damaged_blocks: int


def totals() -> Totals:
    """Return the sums since this process began; the difference of two is what happened between them."""
    found = ffi.new("fffs_object_totals *")
    lib.fffs_object_totals_look(found)
    return Totals(*(int(getattr(found, field.name)) for field in fields(Totals)))


def descriptor_of(number: int) -> int:
    """Return what stands for an object in the ``fd`` of a request."""
    return int(lib.FFFS_OBJECT_FD) - number


def numbers_of(descriptors: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Return the numbers of the objects that stand in the ``fd`` of requests."""
    return int(lib.FFFS_OBJECT_FD) - descriptors.astype(np.int64)


def use_cache(number: int, data_fd: int, map_fd: int, limit: int, keep_free: int) -> None:
    """Give an object a cache, whose files must stay open until the object is closed: see ``fffs_object_use_cache``."""
    _checked(lib.fffs_object_use_cache(number, data_fd, map_fd, limit, keep_free))


def read_batch(requests: npt.NDArray[Any]) -> bool:
    """Read and check all records of a contiguous 1-D array of ``engine.REQUEST``, like ``engine.read_batch``.

    Ctrl-C ends it within a tenth of a second, and in other threads their ``StopFlag``.

    Raises:
        MemoryError: memory is not sufficient.
        EngineError: libcurl is not installed.

    """
    follow_settings()
    view = ffi.from_buffer(_REQUESTS, requests, True)
    if threading.current_thread() is not threading.main_thread() or lib.fffs_remote_is_hot(view, len(view), False):
        flag = current_flag()
        cancel = ffi.NULL if flag is None else ffi.from_buffer("int32_t[]", flag.memory)
        return _result(lib.fffs_remote_read_batch(view, len(view), cancel))
    # Python runs the handlers of signals in the main thread only, and not while that is in C.
    reading = _Reading(view)
    try:
        reading.start()
        while not reading.ended(_SLICE):
            pass
    finally:
        reading.end()
    return _result(reading.result)


def are_cached(requests: npt.NDArray[Any]) -> bool:
    """Whether caches have all bytes of a batch, which may be known only after a read of the disk."""
    view = ffi.from_buffer(_REQUESTS, requests)
    return bool(lib.fffs_remote_is_hot(view, len(view), True))


class _Reading:
    """A batch that is read by another thread, which ``end`` waits for.

    Thread.join is no way to wait: before Python 3.13, an interrupt makes it take a thread that runs for one that ended,
    which would then write to memory that its owner has freed.
    """

    def __init__(self, view: Any) -> None:
        self._view, self._cancel = view, ffi.new("int32_t *")
        self._starting, self._done = threading.Lock(), threading.Lock()
        self._done.acquire()
        self._runs = False
        self.result = 0

    def start(self) -> None:
        """Start the thread. If this is interrupted, it may start later, but then does nothing."""
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with self._starting:
            if self._cancel[0]:
                return
            self._runs = True
        self.result = lib.fffs_remote_read_batch(self._view, len(self._view), self._cancel)
        self._runs = False
        self._done.release()

    def ended(self, seconds: float) -> bool:
        """Wait until the batch is read, for some time. Returns whether it is."""
        return self._done.acquire(timeout=seconds)

    def end(self) -> None:
        """Return when the thread does not use the batch, also after further interrupts."""
        interrupted = None
        while self._runs or not self._cancel[0]:
            try:
                with self._starting:
                    self._cancel[0] = 1
                if self._runs:
                    self._done.acquire(timeout=_SLICE)
            except KeyboardInterrupt as error:
                interrupted = error
        if interrupted is not None:
            raise interrupted


def prefetch(requests: npt.NDArray[Any]) -> None:
    """Start to read records that ``read_batch`` will be asked for, and return at once; see ``fffs_remote_prefetch``."""
    follow_settings()
    view = ffi.from_buffer(_REQUESTS, requests)
    lib.fffs_remote_prefetch(view, len(view))


def _result(status: int) -> bool:
    if status == -errno.EIO:
        return False
    _checked(status)
    return True


def _checked(status: int) -> int:
    if status == -errno.ENOMEM:
        raise MemoryError("not enough memory to read an object")
    if status == -errno.ELIBACC:
        raise EngineError("reading objects over HTTP needs libcurl 7.66 or later; install it (Debian: libcurl4)")
    if status < 0:
        raise EngineError(f"cannot read an object: {os.strerror(-status)}")
    return status
