"""Connection: the file system of a file in fsspec, and the path of the file there; also in children of fork."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from fffs.files.fsspec_host import Host, ask
from fffs.files.fsspec_ranges import Member, Read, cat_file, reader_of
from fffs.files.fsspec_systems import WEB, protocols_of, require_none

_T = TypeVar("_T")

Find = Callable[[], tuple[Any, str]]
"""Returns a file system of fsspec, or a Host, and the path of a file in it."""


class _System(NamedTuple):
    fs: Any  # a Host, too
    path: str
    lock: threading.Lock  # held while it is used, if it is no Host and may not be thread-safe
    is_async: bool  # whether ``cat_ranges`` reads several ranges at a time
    protocols: set[str]
    read: Read
    options: dict[str, str]  # of that


class Connection:
    """Uses the file system of a file. Thread-safe; a child of fork finds the file system again.

    ``archive``: what uses that of the file that the archive is which this file is in, or None.
    """

    def __init__(self, find: Find, archive: Connection | None = None) -> None:
        """find: called once in each process."""
        self._find, self.archive = find, archive
        self._is_damaged: bool | None = None
        self._systems: dict[int, _System] = {}  # by process: those of a parent are kept, not closed, in its children

    def close(self) -> None:
        """Forget what was found. Connections belong to Hosts and to fsspec, which keep them."""
        self._systems.clear()

    def anew(self, rename: Callable[[str], str] = str) -> Connection:
        """Return one that has found nothing yet, of this file or another. rename: returns its path for that of this."""

        def find() -> tuple[Any, str]:
            fs, path = self._find()
            return fs, rename(path)

        return Connection(find, self.archive)

    def _system(self) -> _System:
        if (found := self._systems.get(os.getpid())) is None:
            fs, path = self._find()
            within = fs.fs() if isinstance(fs, Host) else fs
            # ``dir`` of old releases says so of any
            is_async = bool(within.async_impl and getattr(getattr(within, "fs", None), "async_impl", True))
            read = reader_of(within)
            is_async = is_async and read is cat_file
            options = {} if is_async else {"cache_type": "none"}
            made = _System(fs, path, threading.Lock(), is_async, protocols_of(within), read, options)
            found = self._systems.setdefault(os.getpid(), made)
        return found

    @property
    def protocols(self) -> set[str]:
        """The names of its protocol; of one that keeps copies of another's files, those of the other."""
        return self._system().protocols

    @property
    def is_sure(self) -> bool:
        """Whether FileNotFoundError means that there is no such file: fsspec raises it for every failure of HTTP."""
        return self.protocols.isdisjoint(WEB) and (self.archive is None or self.archive.is_sure)

    def use(self, work: Callable[[Any, str], _T]) -> _T:
        """Return what is done with the file system and the path. Raises what ``work`` raises."""
        system = self._system()
        if isinstance(system.fs, Host):
            return system.fs.use(system.path, lambda fs: work(fs, system.path))
        with contextlib.nullcontext() if system.is_async else system.lock:
            return work(system.fs, system.path)

    def ask(self) -> Any:
        """Return the attributes of the file, not those of a cache of listings. Raises what the file system raises."""
        try:
            return self.use(ask if isinstance(self._system().fs, Host) else _ask)
        except FileNotFoundError as error:
            if not self.protocols.isdisjoint(WEB):
                require_none(error)
            raise

    def cat_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[Any]:
        """Return what the file system gives for ranges, or the exception of each."""
        system = self._system()
        if not system.is_async:
            return [self._cat(begin, end) for begin, end in ranges]
        if not isinstance(host := system.fs, Host):
            return _cat_ranges(system.fs, system.path, ranges)
        found = _cat_ranges(fs := host.fs(), system.path, ranges)
        failed = [k for k, data in enumerate(found) if isinstance(data, Exception)]
        if failed and host.is_made_again(system.path, fs, found[failed[0]]):
            repeated = _cat_ranges(host.fs(), system.path, [ranges[k] for k in failed])
            for k, data in zip(failed, repeated, strict=True):
                found[k] = data
        return found

    def is_damaged(self) -> bool:
        """Whether its archive has another checksum of the file. The file is read for it, once."""
        if self._is_damaged is None:  # children of fork know it, too
            read = self._system().read
            self._is_damaged = isinstance(read, Member) and bool(self.use(read.is_damaged))
        return self._is_damaged

    def _cat(self, begin: int, end: int) -> Any:
        read, options = self._system().read, self._system().options
        try:
            try:
                return self.use(lambda fs, path: read(fs, path, begin, end, options))
            except TypeError:  # not all pass options on
                if not options:
                    raise
                options.clear()
                return self.use(lambda fs, path: read(fs, path, begin, end, options))
        except Exception as error:
            return error


def _ask(fs: Any, path: str) -> Any:
    fs.invalidate_cache(path)
    return fs.info(path)


def _cat_ranges(fs: Any, path: str, ranges: Sequence[tuple[int, int]]) -> list[Any]:
    starts, ends = [begin for begin, _ in ranges], [end for _, end in ranges]
    try:
        found = list(fs.cat_ranges([path] * len(ranges), starts, ends, on_error="return"))
        if len(found) != len(ranges):
            raise OSError(f"its file system returned {len(found)} ranges, not {len(ranges)}")
    except Exception as error:
        found = [error] * len(ranges)
    return found
