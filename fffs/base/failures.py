"""reading, writing: with-blocks that turn OSError into the ReadError or WriteError of a file."""

from __future__ import annotations

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
            raise self._kind(error.errno, self._path, self._detail) from error


def reading(path: str, detail: str = "") -> _Naming:
    """Raise an OSError of the block as ReadError. path: the user's name of the file. detail: the part of it."""
    return _Naming(ReadError, path, detail)


def writing(path: str, detail: str = "") -> _Naming:
    """Raise an OSError of the block as WriteError."""
    return _Naming(WriteError, path, detail)
