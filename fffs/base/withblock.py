"""Closing, Discarding, Writing: with-blocks that close an object, or discard what is incomplete at their end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import NoReturn, Protocol, SupportsIndex, TypeVar

from fffs.errors import WriterError

_Self = TypeVar("_Self", bound="Closing")
_Output = TypeVar("_Output", bound="Discarding")


class Closing:
    """An object that the end of a with-block closes."""

    def close(self) -> None:
        """Close what is open. May be called again."""
        raise NotImplementedError

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Discarding:
    """A new file, folder or object. It is discarded at the end of a with-block, or when it is garbage-collected, unless
    it is in place by then. ``discard`` does nothing unless it is ``_open``, as until the end of ``__init__``.
    """

    _open = False

    def discard(self) -> None:
        """Remove what is not in place. May be called again."""
        raise NotImplementedError

    def __enter__(self: _Output) -> _Output:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()

    def __del__(self) -> None:
        self.discard()


class Closes(Protocol):
    """An object with ``close``."""

    def close(self) -> None:
        """Close the object. May be called again."""


@contextlib.contextmanager
def closed_on_error(opened: Iterable[Closes]) -> Iterator[None]:
    """Close all objects in ``opened`` if the block raises; otherwise the caller keeps them."""
    try:
        yield
    except BaseException:
        for entry in opened:
            entry.close()
        raise


def refuse_child(owner: int, shown: str) -> None:
    """Raise WriterError in a child of fork: only the process with the id ``owner`` may write."""
    if os.getpid() != owner:
        raise WriterError(f"{shown}: it belongs to the parent process, which made it before the fork")


class Writing(Closing):
    """A writer. The end of a with-block closes it; it discards when the block raises or it is garbage-collected.

    It is ``closed`` until ``_begin``. A child of fork removes nothing: the files belong to its parent.
    """

    closed = True

    def _begin(self, shown: str) -> None:
        """From now on, there is something to discard. shown: the name in errors."""
        self._shown, self._owner, self.closed = shown, os.getpid(), False

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Raise TypeError, as open files do: a copy would close and discard what belongs to this writer."""
        raise TypeError(f"cannot copy or pickle a {type(self).__name__}, which has files open for writing")

    def _need_open(self) -> None:
        if self.closed:
            raise WriterError(f"{self._shown}: the writer has been closed")
        refuse_child(self._owner, self._shown)

    def discard(self) -> None:
        """Discard what is not permanent yet. May be called again, and after ``close``."""
        if not self.closed:
            self.closed = True
            if os.getpid() == self._owner:
                self._forget()
            else:
                self._let_go()

    def _forget(self) -> None:
        """Discard. Called at most once."""
        raise NotImplementedError

    def _let_go(self) -> None:
        """In a child of fork: drop buffered data, so that interpreter exit does not write it."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.close()
        finally:
            self.discard()

    def __del__(self) -> None:
        self.discard()
