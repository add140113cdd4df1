"""FsspecWithin: a file in a copy of another file, for ``zip://x::simplecache::URL``."""

from __future__ import annotations

import io
import itertools
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Final

import fsspec
from fsspec.spec import AbstractFileSystem

from fffs.files.fsspec_chains import Level, levels_below
from fffs.files.fsspec_connection import Connection
from fffs.files.fsspec_copy import FsspecCopy
from fffs.files.fsspec_file import FsspecFile
from fffs.files.fsspec_systems import connect

_PROTOCOL: Final = "fffs-copy"

# By a name that no other copy of the process has: fsspec finds file systems again by the names in them. Children of
# fork have the copies, too.
_copies: Final[weakref.WeakValueDictionary[str, FsspecCopy]] = weakref.WeakValueDictionary()
_numbers: Final[Iterator[int]] = itertools.count()


def levels_of(url: str, name: str) -> list[Level]:
    """Return the levels of a URL. Raises as ``connect``.

    fsspec divides it: they are in the options of a file system at its top.
    """
    top, path = connect(f"{_PROTOCOL}://::{url}", name)
    return levels_below(Level(_PROTOCOL, path, top.storage_options))[1:]


class _Copies(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """The copies that are open, as files of a file system of fsspec. Without a path, the top of a chain."""

    protocol = _PROTOCOL
    cachable = False

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        copy = self._find(path)
        return {**copy.version, "name": path, "size": copy.size, "type": "file"}

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        return io.BufferedReader(self._find(path).stream())

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
