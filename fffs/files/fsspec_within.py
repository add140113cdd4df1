"""Chains of fsspec as levels, and FsspecWithin: a file in a copy of another file, for ``zip://x::simplecache::URL``."""

from __future__ import annotations

import io
import itertools
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import fsspec
import numpy as np
from fsspec.spec import AbstractFileSystem

from fffs.errors import UsageError
from fffs.files.fsspec_connection import Connection
from fffs.files.fsspec_copy import FsspecCopy
from fffs.files.fsspec_file import FsspecFile
from fffs.files.fsspec_systems import FILE_CACHES, connect, said_by

_PROTOCOL: Final = "fffs-copy"

# By a name that no other copy of the process has: fsspec finds file systems again by the names in them. Children of
# fork have the copies, too.
_copies: Final[weakref.WeakValueDictionary[str, FsspecCopy]] = weakref.WeakValueDictionary()
_numbers: Final[Iterator[int]] = itertools.count()


class Level(NamedTuple):
    """A protocol, the path of a file in its file system, and the options of that, with those of the level below."""

    protocol: str
    path: str
    options: dict[str, Any]

    @property
    def is_cache(self) -> bool:
        """Whether it copies whole files of the level below."""
        return self.protocol in FILE_CACHES

    def below(self) -> Level | None:
        """Return the level below, or None: that of the file that an archive is, and of the same file otherwise.

        ``ffr`` is not asked for it: it may have several files, and opens them itself.
        """
        if self.options.get("target_protocol") is None or self.protocol == "ffr":
            return None
        path, root = self.path, self.options.get("fo")
        if self.protocol == "dir":
            path = f"{(self.options.get('path') or root or '').rstrip('/')}/{path}"
        elif not self.is_cache:
            if "fo" not in self.options:
                return None
            path = root or ""
        return Level(self.options["target_protocol"], path, self.options.get("target_options") or {})

    def connection(self, name: str) -> Connection:
        """Return what connects to the file. name: for messages."""

        def find() -> tuple[Any, str]:
            try:
                return fsspec.filesystem(self.protocol, **self.options), self.path
            except (ImportError, ValueError) as error:
                raise UsageError(f"{name}: {said_by(error)}") from None

        levels = levels_below(self)
        last = levels[-1]
        if len(levels) == 1:
            return Connection(
                find, [self.protocol], f"{self.protocol} {self.options if is_plain(self.options) else next(_numbers)}"
            )
        bottom = last.connection(name)
        roots = [level.connection(name) for level in levels[1:-1] if level.protocol == "dir"]
        made = Connection(find, {level.protocol for level in levels}, bottom.host, bottom, roots)
        if any(level.protocol != "dir" for level in levels[:-1]):
            made.archive = bottom
        return made


def is_plain(value: Any) -> bool:
    """Return whether a repr tells all of a value."""
    if isinstance(value, dict):
        return all(is_plain(item) for item in (*value.keys(), *value.values()))
    if isinstance(value, (list, tuple)):
        return all(is_plain(item) for item in value)
    return value is None or type(value) in (str, bytes, int, float, bool)


def levels_of(url: str, name: str) -> list[Level]:
    """Return the levels of a URL. Raises as ``connect``.

    fsspec divides it: they are in the options of a file system at its top.
    """
    top, path = connect(f"{_PROTOCOL}://::{url}", name)
    return levels_below(Level(_PROTOCOL, path, top.storage_options))[1:]


def levels_below(top: Level) -> list[Level]:
    """Return a level and those below it."""
    levels = [top]
    while (level := levels[-1].below()) is not None:
        levels.append(level)
    return levels


class _Bytes(io.RawIOBase):
    """A copy as a file object with a position of its own."""

    def __init__(self, copy: FsspecCopy) -> None:
        super().__init__()
        self._copy, self._at = copy, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._copy.size}[whence]
        if position < 0:
            raise ValueError(f"a position before the start: {position}")
        self._at = position
        return position

    def readinto(self, buffer: Any) -> int:
        found = self._copy.read_at(self._at, np.frombuffer(buffer, np.uint8))
        self._at += found
        return found


class _Copies(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """The copies that are open, as files of a file system of fsspec. Without a path, the top of a chain."""

    protocol = _PROTOCOL
    cachable = False

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        copy = self._find(path)
        return {**copy.version, "name": path, "size": copy.size, "type": "file"}

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        return io.BufferedReader(_Bytes(self._find(path)))

    def _find(self, path: str) -> FsspecCopy:
        if (copy := _copies.get(self._strip_protocol(path))) is None:
            raise FileNotFoundError(path)
        return copy


fsspec.register_implementation(_PROTOCOL, _Copies, clobber=True)


def connect_within(outer: Sequence[Level], copy: FsspecCopy, name: str) -> Connection:
    """Return what connects to a file in a copy. outer: the levels above the copy. name: for messages."""
    number = str(next(_numbers))
    _copies[number] = copy
    target: dict[str, Any] = {"fo": number, "target_protocol": _PROTOCOL, "target_options": {}}
    for level in reversed(outer):
        options = {**level.options, **target}
        target = {"target_protocol": level.protocol, "target_options": options}
    # An instance that fsspec keeps would keep what it knows of the archive.
    return Level(outer[0].protocol, outer[0].path, {**options, "skip_instance_cache": True}).connection(name)


class FsspecWithin(FsspecFile):
    """A file in a copy. It stays what it is when the file is replaced that the copy is of. Owns the copy."""

    def __init__(self, outer: Sequence[Level], copy: FsspecCopy, name: str, secrets: Sequence[str]) -> None:
        """outer: as for ``connect_within``. Closes the copy on errors. Raises as ``FsspecFile``."""
        self._archive = copy
        try:
            super().__init__(connect_within(outer, copy, name), name, secrets)
        except BaseException:
            self.close()
            raise

    def changed(self, stamp: Any) -> int:
        """0: nothing that is read changes."""
        return 0

    def is_outdated(self) -> bool:
        """See ``File``: whether the file was replaced that the copy is of."""
        return self._archive.is_outdated()

    def close(self) -> None:
        """Close the copy, too."""
        super().close()
        self._archive.close()


class FsspecCopyWithin(FsspecWithin, FsspecCopy):
    """A copy of a file in a copy, for ``simplecache::zip://x::simplecache::URL``: ``x`` may be compressed."""
