"""The signals that end a daemon: exceptions while nothing is mounted, then bytes in a pipe for the event loop."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

import trio

from fffs.native import lib

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_CAPACITY = 65536  # a pipe's


def leave_when_signalled() -> None:
    """While nothing is mounted: an exception, so that what was opened is closed. For the main thread.

    A program that waits for signals with sigwait(3) or signalfd(2) blocks them, and its children inherit that.
    """
    _handle(_leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def ignore_signals() -> None:
    """At the end: an interpreter that ends makes them deadly again. For the main thread."""
    _handle(signal.SIG_IGN)


class SignalPipe:
    """From now on no handler raises: that might hit the event loop, or pyfuse3's C code, anywhere.

    One per process, made in its main thread; its descriptors stay open as long as the process lives.
    """

    def __init__(self) -> None:
        self._ours, self._its = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # Until C has them. A handler in Python could be interrupted by the next signal, and that one's by the next,
        # deeper than Python goes: this one is C, too.
        self._early: dict[int, FrameType | None] = {}
        _handle(self._early.__setitem__)
        self._take()

    async def get(self) -> int:
        """Wait for a signal; the last one if there are several."""
        self._take()
        if self._early:
            number = self._early.popitem()[0]
            self._early.clear()
            return number
        await trio.lowlevel.wait_readable(self._ours)
        return os.read(self._ours, _CAPACITY)[-1]

    def _take(self) -> None:
        """Out of Python's hands; twice, because trio.run sets SIGINT's handler to find out which thread it runs in."""
        if lib.fffs_signals_to(self._its, SIGNALS, len(SIGNALS)) != 0:
            raise AssertionError("signals that every system has")


def _handle(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    for number in SIGNALS:
        signal.signal(number, handler)


def _leave(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
