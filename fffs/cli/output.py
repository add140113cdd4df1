"""The output of commands: lines on standard output and stderr, without terminal control sequences."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterable
from types import TracebackType

from fffs.errors import WriteError

WARNINGS_MAX = 20  # lines of one kind


def printable(text: str) -> str:
    """Escape non-printable characters, so that a file name can neither end the line nor control the terminal."""
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return line.encode(errors="backslashreplace").decode()


def put(data: bytes | memoryview, flush: bool = False) -> None:
    """Write bytes to standard output. Raises WriteError."""
    if sys.stdout is None:  # standard output was closed when the interpreter started
        return
    try:
        if data:  # a file object without a buffer would pass an empty write on, which fails on a closed terminal
            sys.stdout.buffer.write(data)
        if flush:
            sys.stdout.flush()
    except BrokenPipeError:
        # Die silently like other tools (fffs ls | head). The signal is not left to the kernel: it would also end a
        # program whose connection to a store is closed.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)
    except OSError as error:
        # The interpreter flushes the rest of the buffer at exit, which would fail again.
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        raise WriteError(error.errno, "standard output") from error


def say(text: str) -> None:
    """Print one line to standard output."""
    put(printable(text).encode() + b"\n")


def complain(text: str) -> None:
    """Print one line about a problem to stderr."""
    if sys.stderr is None:
        return
    # The current line may show a progress bar.
    erase = "\r\x1b[K" if sys.stderr.isatty() else ""
    with contextlib.suppress(OSError):  # a failure to write to stderr cannot be reported
        print(f"{erase}fffs: {printable(text)}", file=sys.stderr)


class LogLines(logging.Handler):
    """Prints what the library logs, one line each."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        complain(self.format(record))


class Warnings:
    """Prints warnings to stderr as they come, but only the first ``WARNINGS_MAX``; the end of the with-block prints
    how many more there were. May be called from any thread: at worst, two lines appear in another order.
    """

    def __init__(self, begin: str = "warning: ", what: str = "warnings") -> None:
        """begin: of each line. what: the lines are, in the plural."""
        self.count = 0
        self._begin, self._what = begin, what

    def __call__(self, line: str) -> None:
        """Print a warning, or count it."""
        self.count += 1
        if self.count <= WARNINGS_MAX:
            complain(f"{self._begin}{line}")

    def __enter__(self) -> Warnings:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.count > WARNINGS_MAX:
            complain(f"{self._begin}... and {self.count - WARNINGS_MAX} more {self._what}")


def warn(lines: Iterable[str]) -> None:
    """Print several warnings at once."""
    with Warnings() as warnings:
        for line in lines:
            warnings(line)
