"""Host: a file system of fsspec that has one connection, as those of SFTP and FTP. It is made again after it was lost.

fsspec keeps the objects of such file systems, one for each thread that asks for it. Two threads must not use one at the
same time, and once its connection is lost, it fails for ever.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

from fffs.errors import FffsError, UsageError
from fffs.files import fsspec_servers
from fffs.files.fsspec_servers import close, limit_silence, may_answer_late, ping, require_missing
from fffs.files.fsspec_systems import FILE_CACHES, WEB, configured, file_system_class

_T = TypeVar("_T")

SHORTEST: Final = 0.1  # seconds between attempts to connect again
LONGEST: Final = 10.0  # the same, unless an attempt takes longer

# Protocols whose file systems have no connection that could be lost: each request finds or opens one. Archives and
# caches have those of the file systems below them.
_WITHOUT: Final = (
    WEB
    | FILE_CACHES
    | {"abfs", "abfss", "adl", "az", "data", "gcs", "gs", "hf", "s3", "s3a"}
    | {"dir", "ffr", "fffs-file", "file", "libarchive", "local", "memory", "tar", "zip"}
)

# Those whose objects are made for fffs alone: who shares one may use it in another thread.
_OWN: Final = frozenset({"sftp", "ssh", "ftp"})

# What is said of the file, not of the connection.
_OF_THE_FILE: Final = (
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
    MemoryError,
    NotImplementedError,
    TypeError,
    FffsError,
)


class _Connected:
    """What a Host has in one process. All but ``done`` is changed with the lock held."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.fs: Any = None
        self.opened: dict[int, Any] = {}  # files of ``fs`` by numbers
        self.failed: list[Any] = []  # such files after an error
        self.done: deque[int] = deque()  # numbers of files that are not read any more
        self.pause = 0.0  # seconds until the next attempt after one that failed
        self.until = 0.0  # when that is
        self.lost = ""  # why the connection was closed

    def fail(self, number: int) -> None:
        """Have a file closed, if there is one."""
        if (file := self.opened.pop(number, None)) is not None:
            self.failed.append(file)


class Host:
    """A file system with one connection. Thread-safe: threads use it one after the other, unless it is asynchronous.

    A child of fork connects itself. What its parent had stays as it is there: closing it would speak over the
    connection of the parent.
    """

    def __init__(self, make: Callable[[bool], Any], is_own: bool) -> None:
        """make: returns the file system; with True, one that nobody else has. is_own: nobody is to have the first."""
        self._make, self._is_own = make, is_own
        self._processes: dict[int, _Connected] = {}
        _hosts.add(self)
        if is_own:
            weakref.finalize(self, _end, self._processes).atexit = False

    def _here(self) -> _Connected:
        if (here := self._processes.get(os.getpid())) is None:
            here = self._processes.setdefault(os.getpid(), _Connected())
        return here

    def fs(self) -> Any:
        """Return the file system, to ask what it is. Raises what connecting raises."""
        here = self._here()
        if here.fs is None:
            with here.lock:
                if here.fs is None:
                    here.fs = self._connect() if self._is_own else self._make(False)
        return here.fs

    def _connect(self) -> Any:
        fs = self._make(True)
        if self._is_own:
            limit_silence(fs)
        return fs

    def _disconnect(self, here: _Connected, error: BaseException) -> None:
        if self._is_own:
            close(here.fs)
            here.lost = here.lost or f"{type(error).__name__}: {error}"
        _close_all_files(here)

    def use(self, path: str, work: Callable[[Any], _T]) -> _T:
        """Return what is done with the file system; if that fails because the connection is lost, with a new one.

        path: what is asked for to learn whether the connection is lost. Raises what ``work`` raises.
        """
        here, fs = self._here(), self.fs()
        if not fs.async_impl:
            with here.lock:
                return self._work(here, path, work)
        try:
            return work(fs)
        except Exception as error:
            if not self.is_made_again(path, fs, error):
                raise
        return work(here.fs)

    def is_made_again(self, path: str, fs: Any, error: Exception) -> bool:
        """Return whether there is another file system in place of an asynchronous one that failed."""
        here = self._here()
        with here.lock:
            return here.fs is not fs or self._connect_again(here, path, error)

    def _work(self, here: _Connected, path: str, work: Callable[[Any], _T]) -> _T:
        try:
            return self._attempt(here, path, work)
        except Exception as error:
            if not self._connect_again(here, path, error):
                raise
        return self._attempt(here, path, work)

    def _attempt(self, here: _Connected, path: str, work: Callable[[Any], _T]) -> _T:
        if here.lost:
            raise ConnectionError(f"the connection was lost: {here.lost}")
        try:
            try:
                return work(here.fs)
            except FileNotFoundError:
                if self._is_own:
                    require_missing(here.fs, path)
                raise
        except BaseException as error:
            if may_answer_late(here.fs, error):
                self._disconnect(here, error)
            raise

    def _connect_again(self, here: _Connected, path: str, error: Exception) -> bool:
        """Connect again if an error means that the connection is lost. Returns whether there is another one."""
        if time.monotonic() < here.until or isinstance(error, _OF_THE_FILE):
            return False
        if not here.lost:
            if (failure := self._failure_of(here.fs, path)) is None:
                return False
            self._disconnect(here, failure)
        return self._replace(here, path)

    def _replace(self, here: _Connected, path: str) -> bool:
        begin, fs = time.monotonic(), None
        with contextlib.suppress(Exception):  # the first error is reported
            fs = self._connect()
        if fs is None or self._failure_of(fs, path, is_new=True) is not None:
            if self._is_own:
                close(fs)
            here.pause = max(SHORTEST, time.monotonic() - begin, min(LONGEST, 2 * here.pause))
            here.until = time.monotonic() + here.pause
            return False
        here.fs, here.pause, here.until, here.lost = fs, 0.0, 0.0, ""
        return True

    def _failure_of(self, fs: Any, path: str, is_new: bool = False) -> Exception | None:
        """Return None if a file system answers, be it with an error that is of the file, or what it raises."""
        try:
            if not (self._is_own and ping(fs, is_new)):
                ask(fs, path)
        except _OF_THE_FILE:
            return None
        except Exception as error:
            return error
        except BaseException:  # an interrupt: the answer may come later
            if self._is_own:
                close(fs)
            raise
        return None

    # ------------------------------------------------------------ files that stay open

    def read(self, number: int, path: str, check: Callable[[Any], None], begin: int, end: int) -> bytes:
        """Read a range of a file that stays open until ``release``.

        number: another one for each file. check: called with the file system each time after it was opened there; what
        it raises is raised.
        """
        here = self._here()

        def work(fs: Any) -> bytes:
            while here.done:
                here.fail(here.done.popleft())
            _close_files(here)
            try:
                if number not in here.opened:
                    here.opened[number] = fs.open(path, "rb")
                    check(fs)
                file = here.opened[number]
                file.seek(begin)
                found: bytes = file.read(end - begin)
                return found
            except BaseException:
                here.fail(number)
                raise

        return self.use(path, work)

    def release(self, number: int) -> None:
        """Have a file closed at the next use. May be called at any moment, also by the garbage collector."""
        self._here().done.append(number)


_hosts: Final[weakref.WeakSet[Host]] = weakref.WeakSet()
_of_parents: Final[list[Any]] = []


def _keep_those_of_parent() -> None:
    _of_parents.extend(list(host._processes.values()) for host in _hosts)


os.register_at_fork(after_in_child=_keep_those_of_parent)


def _close_files(here: _Connected) -> None:
    """Close files that failed or are not read any more.

    paramiko closes those that are left to the garbage collector over their connection, also while it sends something
    else over that, and waits for itself then. Raises TimeoutError: the server is silent, which paramiko does not say.
    """
    while here.failed:
        begin = time.monotonic()
        with contextlib.suppress(Exception):
            here.failed.pop().close()
        if time.monotonic() - begin > fsspec_servers.PATIENCE / 2:
            raise TimeoutError("the server does not answer")


def _close_all_files(here: _Connected) -> None:
    """Close all files, unless the server is silent."""
    here.failed += here.opened.values()
    here.opened.clear()
    with contextlib.suppress(TimeoutError):
        _close_files(here)


def _end(processes: dict[int, _Connected]) -> None:
    """Close the connection of a Host that is gone, unless it is that of a parent."""
    if (here := processes.get(os.getpid())) is not None:
        close(here.fs)
        _close_all_files(here)


def has_host(protocol: str) -> bool:
    """Return whether a Host uses the file systems of a protocol."""
    return protocol not in _WITHOUT


def ask(fs: Any, path: str) -> Any:
    """Return the attributes of a file, of no cache of listings: that of the folder is below another path."""
    fs.invalidate_cache()
    return fs.info(path)


# ---------------------------------------------------------------- the hosts of this process

_found: Final[dict[Any, Host]] = {}


def find_host(protocol: str, options: dict[str, Any], name: str) -> Host:
    """Return the Host of a file system. name: of a file, for messages.

    For SFTP and FTP, it is the same one for the same options, which stays. Files of others, which may be thread-safe,
    have one each. Raises UsageError: fsspec does not know the protocol.
    """
    kind = file_system_class(protocol, name)
    names = {kind.protocol} if isinstance(kind.protocol, str) else set(kind.protocol)
    is_own = not kind.async_impl and not names.isdisjoint(_OWN)
    whole = configured(protocol, options, name)

    def make(skip: bool) -> Any:
        if configured(protocol, whole, name) != whole:  # it would add another user, for example
            raise UsageError("fsspec's configuration has more options than when the file was opened; open it again")
        return kind(**whole, skip_instance_cache=True) if skip else kind(**whole)

    host = Host(make, is_own)
    try:
        return _found.setdefault((kind, _frozen(whole)), host) if is_own else host
    except TypeError:  # an option cannot be hashed
        return host


def _frozen(value: Any) -> Any:
    """Return what is equal for equal options; it cannot be hashed if one of them cannot."""
    if isinstance(value, dict):
        return frozenset((key, _frozen(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(item) for item in value)
    return type(value), value
