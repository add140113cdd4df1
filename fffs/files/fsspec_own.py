"""The open files of fffs as those of a file system of fsspec, ``fffs-file``: archives are opened from them."""

from __future__ import annotations

import io
import itertools
import os
import weakref
from collections.abc import Iterator
from typing import Any, Final, Protocol

import fsspec
from fsspec.spec import AbstractFileSystem

PROTOCOL: Final = "fffs-file"


class OwnFile(Protocol):
    """What an archive is opened from."""

    size: int

    def stream(self) -> io.RawIOBase:
        """Return a file object, which keeps the file alive."""


# By a name that no other file of the process has: fsspec finds file systems again by the names in them. Children of
# fork have the files, too.
_files: Final[weakref.WeakValueDictionary[str, OwnFile]] = weakref.WeakValueDictionary()
_numbers: Final[Iterator[int]] = itertools.count()


def path_of(file: OwnFile, original: str) -> str:
    """Return a path of a file in the file system, as long as the caller keeps the file.

    original: another path of the file, the ending of which tells ``tar`` how it is compressed.
    """
    ending = os.path.splitext(original)[1]
    path = f"{next(_numbers)}{ending if ending[1:].isalnum() else ''}"
    _files[path] = file
    return path


class _OwnFiles(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """The files. Without a path, the top of a chain."""

    protocol = PROTOCOL
    cachable = False

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        return {"name": path, "size": self._find(path).size, "type": "file"}

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        found: Any = io.BufferedReader(self._find(path).stream())
        found.original = path
        return found

    def _find(self, path: str) -> OwnFile:
        if (file := _files.get(self._strip_protocol(path))) is None:
            raise FileNotFoundError(path)
        return file


fsspec.register_implementation(PROTOCOL, _OwnFiles, clobber=True)
