"""reading, writing: with-blocks that turn OSError into the ReadError or WriteError of a file."""

from __future__ import annotations

import errno
import os
from types import TracebackType

from fffs.errors import FffsError, ReadError, WriteError


class _Naming:
    """Entered for each piece of a file: a class takes a third of a generator's time."""

    __slots__ = ("_detail", "_kind", "_path")

    def __init__(self, kind: type[ReadError | WriteError], path: str, detail: str) -> None:
        self._kind, self._path, self._detail = kind, path, detail

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Errors of this package say more already; some are OSErrors, too.
        if isinstance(error, OSError) and not isinstance(error, FffsError):
            raise self._kind(error.errno, self._path, self._detail or self._missing_folder(error)) from error

    def _missing_folder(self, error: OSError) -> str:
        folder = os.path.dirname(self._path)
        is_missing = self._kind is WriteError and error.errno == errno.ENOENT and folder and not os.path.isdir(folder)
        return f"there is no folder {folder}; make it first" if is_missing else ""


def reading(path: str, detail: str = "") -> _Naming:
    """Raise an OSError of the block as ReadError. path: the user's name of the file. detail: the part of it."""
    return _Naming(ReadError, path, detail)


def writing(path: str, detail: str = "") -> _Naming:
    """Raise an OSError of the block as WriteError."""
    return _Naming(WriteError, path, detail)
