"""Connection: finds the file system of a file in fsspec, again in a child of fork, and after a connection was lost."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple, TypeVar

from fffs.errors import FffsError
from fffs.files.fsspec_systems import FILE_CACHES, WEB, import_fsspec

_T = TypeVar("_T")

Find = Callable[[], tuple[Any, str]]
"""Returns a file system of fsspec, and the path of a file in it."""

SHORTEST: Final = 0.1  # seconds between attempts to connect again, which may also take minutes each

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
    lock: Any  # a lock, held while a file system is used that may not be thread-safe
    options: dict[str, str]

    def held(self) -> contextlib.AbstractContextManager[Any]:
        """Return what is entered to use it."""
        held: contextlib.AbstractContextManager[Any] = self.lock
        return contextlib.nullcontext() if self.fs.async_impl else held


class Connection:
    """Finds the file system of a file. Thread-safe.

    fsspec keeps the objects of file systems, and gives the same one for the same names. Some, as those of SFTP and FTP,
    have one connection, and fail for ever once it was lost.
    """

    def __init__(self, find: Find, protocols: Collection[str], lowest: Connection | None = None) -> None:
        """protocols: of the file system, and of all below it. lowest: of the file that an archive is."""
        self._find, self._protocols, self.lowest = find, frozenset(protocols), lowest
        self._systems: dict[int, System] = {}  # by process: those of a parent are kept, not closed, in its children
        self._pause, self._until = SHORTEST, 0.0

    def close(self) -> None:
        """Forget what was found. Connections belong to fsspec, which keeps them."""
        self._systems.clear()

    def anew(self) -> Connection:
        """Return one that has found nothing yet."""
        return Connection(self._find, self._protocols, self.lowest)

    def beside(self, rename: Callable[[str], str]) -> Connection:
        """Return that of another file. rename: returns its path for the path of this one."""

        def find() -> tuple[Any, str]:
            fs, path = self._find()
            return fs, rename(path)

        return Connection(find, self._protocols, self.lowest)

    def system(self) -> System:
        """Return the file system, in this process. Raises what the file system raises."""
        process = os.getpid()
        if (system := self._systems.get(process)) is None:
            try:
                found = self._find()
            except Exception as error:
                # Of an archive: the file system that it is in may have lost its connection.
                if len(self._protocols) == 1 or not self.is_lost(error):
                    raise
                self.forget()
                found = self._find()
            system = self._systems.setdefault(process, _system_of(found))
        return system

    def is_lost(self, error: object) -> bool:
        """Return whether what a file system raised may mean that it has lost its connection."""
        may_be = isinstance(error, Exception) and not isinstance(error, _OF_THE_FILE)
        return may_be and not self._protocols <= _WITHOUT

    def use(self, work: Callable[[System], _T], check: Callable[[System], None]) -> _T:
        """Return what is done with the file system; if that fails because the connection is lost, with a new one.

        check: as for ``again``. Raises what ``work`` and ``check`` raise.
        """
        system = self.system()
        try:
            with system.held():
                return work(system)
        except Exception as error:
            if not self.is_lost(error) or (again := self.again(system, check)) is None:
                raise
        with again.held():
            return work(again)

    def again(self, failed: System, check: Callable[[System], None]) -> System | None:
        """Connect again, and return the file system, or None.

        check: called with it. Raises FileNotFoundError, and what ``check`` raises of FffsError.
        """
        with failed.lock:
            current = self._systems.get(os.getpid(), failed)
            if current is not failed:  # by another thread
                return current
            if (begin := time.monotonic()) < self._until:
                return None
            for is_kept in (True, False):
                if not is_kept:
                    self.forget()
                try:
                    system = _system_of(self._find())
                    if system.fs is not failed.fs:
                        check(system)
                        self._systems[os.getpid()] = system
                        return system
                except (FileNotFoundError, FffsError):
                    raise
                except Exception:  # that of the first call is reported
                    pass
                finally:
                    self._pause = max(SHORTEST, time.monotonic() - begin)
            self.pause()
        return None

    def pause(self) -> None:
        """Do not connect again for as long as it took: it did not help."""
        self._until = time.monotonic() + self._pause

    @property
    def is_sure(self) -> bool:
        """Whether FileNotFoundError means that there is no such file: fsspec raises it for every failure of HTTP."""
        return self._protocols.isdisjoint(WEB)

    def forget(self) -> None:
        """Have fsspec connect again where a file system is asked for. Those in use are not closed."""
        for protocol in self._protocols:  # those above keep the one that has the connection
            with contextlib.suppress(Exception):
                import_fsspec("").get_filesystem_class(protocol).clear_instance_cache()


def _system_of(found: tuple[Any, str]) -> System:
    fs, path = found
    return System(fs, path, threading.Lock(), {} if fs.async_impl else {"cache_type": "none"})
