"""The signals that end a daemon: while nothing is mounted they raise exceptions, then they write to a pipe."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

import trio

from fffs.native import lib

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_CAPACITY = 65536  # bytes of a pipe


def leave_when_signalled() -> None:
    """Make signals raise an exception, so that everything opened is closed. For the main thread, before mounting.

    Also unblocks them: a parent that uses sigwait(3) or signalfd(2) blocks signals, and its children inherit that.
    """
    _handle(_leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ends())


def ignore_signals() -> None:
    """Ignore the signals at the end: an interpreter that exits restores their default action. For the main thread."""
    _handle(signal.SIG_IGN)


class SignalPipe:
    """A pipe that receives signals. No handler raises any more, because that could interrupt pyfuse3's C code anywhere.

    One per process, made in its main thread. Its descriptors are never closed.
    """

    def __init__(self) -> None:
        self._ours, self._its = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # Block the signals until the C handler has them. A handler in Python could be interrupted by the next signal,
        # and its handler by the next, beyond the recursion limit; this handler is in C, too.
        self._early: dict[int, FrameType | None] = {}
        _handle(self._early.__setitem__)
        self._take()

    async def get(self) -> int:
        """Wait for a signal. Returns the last one if there are several."""
        self._take()
        if self._early:
            number = self._early.popitem()[0]
            self._early.clear()
            return number
        await trio.lowlevel.wait_readable(self._ours)
        return os.read(self._ours, _CAPACITY)[-1]

    def _take(self) -> None:
        """Install the C handler. Called twice, because trio.run sets the handler of SIGINT to find its thread."""
        ends = _ends()
        if lib.fffs_signals_to(self._its, ends, len(ends)) != 0:
            raise AssertionError("signals that every system has")


def _handle(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    for number in _ends():
        signal.signal(number, handler)


def _ends() -> list[signal.Signals]:
    """Return the signals that end the daemon. SIGHUP and SIGINT are left alone if they are ignored, as under nohup(1)
    and in the background of a shell without job control.
    """
    return [n for n in _SIGNALS if n == signal.SIGTERM or signal.getsignal(n) != signal.SIG_IGN]


def _leave(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
