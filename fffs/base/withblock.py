"""What a with-block does to what is open in it: it closes it, or has it forget what an exception left incomplete."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Protocol, TypeVar

from fffs.errors import WriterError

_Self = TypeVar("_Self", bound="Closing")


class Closing:
    """Something that the end of a with-block closes."""

    def close(self) -> None:
        """Close what is open. May be called again."""
        raise NotImplementedError

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Closes(Protocol):
    """What can be closed."""

    def close(self) -> None:
        """Close it. May be called again."""


@contextlib.contextmanager
def closed_on_error(opened: Iterable[Closes]) -> Iterator[None]:
    """A block that hands over what it opens: whatever of it is open is closed when the block raises."""
    try:
        yield
    except BaseException:
        for entry in opened:
            entry.close()
        raise


def refuse_child(owner: int, shown: str) -> None:
    """Raise WriterError in a child of fork: what is being written is that process's whose number is owner."""
    if os.getpid() != owner:
        raise WriterError(f"{shown}: it belongs to the process that made it, which this one was forked from")


class Writing(Closing):
    """A writer: the end of a with-block closes it; an exception, or nobody's knowing it any more, has it ``discard``.

    It is ``closed`` until ``_begin``. In a child of fork nothing is forgotten: all that is there is its parent's.
    """

    closed = True

    def _begin(self, shown: str) -> None:
        """From now on there is something to forget. shown: what errors call it."""
        self._shown, self._owner, self.closed = shown, os.getpid(), False

    def _need_open(self) -> None:
        if self.closed:
            raise WriterError(f"{self._shown}: the writer has been closed")
        refuse_child(self._owner, self._shown)

    def discard(self) -> None:
        """Forget what is not permanent yet. May be called again, and after ``close``."""
        if not self.closed:
            self.closed = True
            if os.getpid() == self._owner:
                self._forget()
            else:
                self._let_go()

    def _forget(self) -> None:
        """What ``discard`` does, once."""
        raise NotImplementedError

    def _let_go(self) -> None:
        """The same in a child of fork: see to it that nothing that was not written yet is, when Python ends."""

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
