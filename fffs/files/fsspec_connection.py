"""Connection: finds the file system of a file in fsspec, again in a child of fork, and after a connection was lost.

fsspec keeps the objects of file systems, one for each thread that asks for it. Some, as those of SFTP and FTP, have one
connection: two threads must not use it at the same time, and once it is lost, the object fails for ever.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from fffs.errors import FffsError
from fffs.files.fsspec_systems import FILE_CACHES, WEB, protocols_of

_T = TypeVar("_T")

Find = Callable[[], tuple[Any, str]]
"""Returns a file system of fsspec, and the path of a file in it."""

SHORTEST: Final = 0.1  # seconds between attempts to connect again
LONGEST: Final = 10.0  # the same, unless an attempt takes longer

# Protocols whose file systems have no connection that could be lost: each request finds or opens one. Archives and
# caches have those of the file systems below them.
_WITHOUT: Final = (
    WEB
    | FILE_CACHES
    | {"abfs", "abfss", "adl", "az", "data", "gcs", "gs", "hf", "s3", "s3a"}
    | {"dir", "ffr", "fffs-copy", "file", "libarchive", "local", "memory", "tar", "zip"}
)

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


class System(NamedTuple):
    """A file system, the path of a file in it, and how it is used."""

    fs: Any
    path: str
    lock: Any  # held while a file system is used that may not be thread-safe: that of the connection, if it has one
    options: dict[str, str]
    bottom: System | None  # the one that has the connection, if it is another one

    @property
    def is_async(self) -> bool:
        """Whether its methods for several ranges are asynchronous: ``dir`` of old releases says so of any."""
        return bool(self.fs.async_impl and getattr(getattr(self.fs, "fs", None), "async_impl", True))

    def held(self) -> contextlib.AbstractContextManager[Any]:
        """Return what is entered to use it."""
        held: contextlib.AbstractContextManager[Any] = self.lock
        return contextlib.nullcontext() if self.is_async else held

    def ask(self) -> Any:
        """Return the attributes of the file, not those of a cache of listings. Raises what the file system raises."""
        with self.held():
            self.fs.invalidate_cache(self.path)
            return self.fs.info(self.path)


class _Pauses:
    """When hosts may be connected to again: not at once after it failed, whichever file it was for."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[float, float]] = {}  # until when, and how long the pause is

    def is_over(self, host: str) -> bool:
        return time.monotonic() >= self._found.get(host, (0.0, 0.0))[0]

    def begin(self, host: str, taken: float) -> None:
        pause = max(SHORTEST, taken, min(LONGEST, 2 * self._found.get(host, (0.0, 0.0))[1]))
        self._found[host] = time.monotonic() + pause, pause

    def end(self, host: str) -> None:
        self._found.pop(host, None)


_pauses: Final = _Pauses()


class Connection:
    """Finds the file system of a file. Thread-safe.

    ``archive``: what connects to the file that the archive is which this file is in, or None.
    """

    def __init__(
        self,
        find: Find,
        protocols: Collection[str],
        host: str = "",
        bottom: Connection | None = None,
        roots: Sequence[Connection] = (),
    ) -> None:
        """protocols: of the file system and of all below it.

        host: tells the lowest of these from others. bottom: of that one, None: this is it. roots: of those in between
        that fsspec keeps.
        """
        self._find, self._protocols, self.host = find, frozenset(protocols), host
        self._bottom, self._roots = bottom, roots
        self.archive: Connection | None = None
        self._systems: dict[int, System] = {}  # by process: those of a parent are kept, not closed, in its children
        self._locks: dict[int, Any] = {}  # by process, held while one connects again

    def close(self) -> None:
        """Forget what was found. Connections belong to fsspec, which keeps them."""
        self._systems.clear()

    def anew(self, find: Find | None = None) -> Connection:
        """Return one that has found nothing yet. find: that of another file in the file system."""
        made = Connection(find or self._find, self._protocols, self.host, self._bottom, self._roots)
        made.archive = self.archive
        return made

    def beside(self, rename: Callable[[str], str]) -> Connection:
        """Return that of another file. rename: returns its path for the path of this one."""

        def find() -> tuple[Any, str]:
            fs, path = self._find()
            return fs, rename(path)

        return self.anew(find)

    @property
    def is_sure(self) -> bool:
        """Whether FileNotFoundError means that there is no such file: fsspec raises it for every failure of HTTP."""
        return self._protocols.isdisjoint(WEB)

    def is_lost(self, error: object) -> bool:
        """Return whether what a file system raised may mean that it has lost its connection."""
        may_be = isinstance(error, Exception) and not isinstance(error, _OF_THE_FILE)
        return may_be and not self._protocols <= _WITHOUT

    # ------------------------------------------------------------ connecting

    def system(self) -> System:
        """Return the file system, in this process. Raises what the file system raises."""
        process = os.getpid()
        if (system := self._systems.get(process)) is None:
            system = self._systems.setdefault(process, self._connect())
        return system

    def _connect(self) -> System:
        try:
            return self._connect_once()
        except Exception as error:
            if self._bottom is None or not self.is_lost(error):
                raise
        self._restore_below()
        return self._connect_once()

    def _connect_once(self) -> System:
        fs, path = self._find()
        bottom = None
        if self._protocols <= _WITHOUT:
            lock: Any = threading.Lock()
        elif self._bottom is None:
            lock = fs.__dict__.setdefault("_fffs_lock", threading.RLock())
        else:
            bottom = self._bottom.anew().system()  # fsspec gives this thread the same one as to the archive
            lock = bottom.lock
        system = System(fs, path, lock, {}, bottom)
        if not system.is_async:
            system.options["cache_type"] = "none"
        return system

    def _restore_below(self) -> None:
        """Have the file systems below connect again. Raises what they raise."""
        if self._bottom is not None:
            self._bottom.anew().use(System.ask)
            for root in self._roots:
                _drop(root.anew().system().fs)

    # ------------------------------------------------------------ a connection that was lost

    def use(self, work: Callable[[System], _T], check: Callable[[System], object] = System.ask) -> _T:
        """Return what is done with the file system; if that fails because the connection is lost, with a new one.

        work: enters ``held``. check: as for ``again``. Raises what ``work`` and ``check`` raise.
        """
        system = self.system()
        try:
            return work(system)
        except Exception as error:
            if not self.is_lost(error) or (again := self.again(system, check)) is None:
                raise
        return work(again)

    def again(self, failed: System, check: Callable[[System], object]) -> System | None:
        """Connect again if the connection is lost, and return the file system, or None.

        check: called with it. Raises FileNotFoundError, and what ``check`` raises of FffsError.
        """
        with self._locks.setdefault(os.getpid(), threading.Lock()):
            current = self._systems.get(os.getpid(), failed)
            if current is not failed:  # by another thread
                return current
            if not _pauses.is_over(self.host) or _is_alive(failed):
                return None
            begin = time.monotonic()
            try:
                if (system := self._connect_in_place_of(failed, check)) is not None:
                    self._systems[os.getpid()] = system
                    _pauses.end(self.host)
                    return system
            except (FileNotFoundError, FffsError):
                raise
            except Exception:  # that of the first call is reported
                pass
            _pauses.begin(self.host, time.monotonic() - begin)
        return None

    def _connect_in_place_of(self, failed: System, check: Callable[[System], object]) -> System | None:
        self._restore_below()
        for _ in range(2):  # another one that fsspec kept may be lost, too
            system = self._connect_once()
            if system.fs is not failed.fs:
                try:
                    check(system)
                except Exception as error:
                    if not self.is_lost(error):
                        raise
                else:
                    return system
            _drop(system.fs)
        return None

    def failed_again(self) -> None:
        """Do not connect again for a while: it did not help."""
        _pauses.begin(self.host, 0)


def _is_alive(system: System) -> bool:
    """Return whether a file system answers, be it with an error that is of the file."""
    try:
        (system.bottom or system).ask()
    except Exception as error:
        return isinstance(error, _OF_THE_FILE)
    return True


def _drop(fs: Any) -> None:
    """Have fsspec make another file system where this one is asked for. It has no public way to forget a single one."""
    kept: dict[Any, Any] = getattr(type(fs), "_cache", {})
    for token, system in list(kept.items()):
        if system is fs:
            kept.pop(token, None)
    if not protocols_of(fs).isdisjoint({"sftp", "ssh", "ftp"}):  # whose threads would keep the connection
        for name in ("client", "ftp"):
            with contextlib.suppress(Exception):
                getattr(fs, name).close()
