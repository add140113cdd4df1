"""reading, writing: with-blocks in which a failed system call becomes the ReadError or WriteError of a file."""

from __future__ import annotations

from types import TracebackType

from fffs.errors import FffsError, ReadError, WriteError


class _Naming:
    """A class, not a generator, because this is entered for each piece of a file: it takes a third of the time."""

    __slots__ = ("_detail", "_kind", "_path")

    def __init__(self, kind: type[ReadError | WriteError], path: str, detail: str) -> None:
        self._kind, self._path, self._detail = kind, path, detail

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # What is ours already says more, also where it is an OSError.
        if isinstance(error, OSError) and not isinstance(error, FffsError):
            raise self._kind(error.errno, self._path, self._detail) from error


def reading(path: str, detail: str = "") -> _Naming:
    """OSErrors of the block are raised as ReadError; path is what the user calls the file, detail the part of it."""
    return _Naming(ReadError, path, detail)


def writing(path: str, detail: str = "") -> _Naming:
    """The same with WriteError."""
    return _Naming(WriteError, path, detail)
