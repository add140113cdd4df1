"""What a command says: lines on standard output and stderr, with nothing in them that commands a terminal."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from types import TracebackType

from fffs.errors import WriteError

WARNINGS_MAX = 20  # lines of one kind


def printable(text: str) -> str:
    """The text in one line: what a file is called must neither end it nor command the terminal."""
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return line.encode(errors="backslashreplace").decode()


def put(data: bytes | memoryview, flush: bool = False) -> None:
    """Write bytes to standard output. Raises WriteError."""
    if sys.stdout is None:  # it was closed when the interpreter began: nobody wants to know
        return
    try:
        sys.stdout.buffer.write(data)
        if flush:
            sys.stdout.flush()
    except OSError as error:
        # What is still in the buffer would fail again when the interpreter ends.
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
    # A progress bar may stand there.
    erase = "\r\x1b[K" if sys.stderr.isatty() else ""
    with contextlib.suppress(OSError):  # nothing can be said about an stderr that cannot be written
        print(f"{erase}fffs: {printable(text)}", file=sys.stderr)


class Warnings:
    """Prints warnings to stderr as they come; of very many only the first, and at the with-block's end their number.

    May be called from any thread: at worst two lines come in another order.
    """

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, line: str) -> None:
        """One more."""
        self._count += 1
        if self._count <= WARNINGS_MAX:
            complain(f"warning: {line}")

    def __enter__(self) -> Warnings:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._count > WARNINGS_MAX:
            complain(f"warning: ... and {self._count - WARNINGS_MAX} more of these")


def warn(lines: Iterable[str]) -> None:
    """Print warnings that are all there."""
    with Warnings() as warnings:
        for line in lines:
            warnings(line)
