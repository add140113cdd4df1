"""Where a daemon's log goes: the terminal while it starts or stays in front, a file or the system's log afterwards."""

from __future__ import annotations

import logging
import logging.handlers
import os
import sys
import warnings

from fffs.errors import WriteError

SYSTEM_LOG = "/dev/log"


class DaemonLog:
    """The log of this process, from the start on. One per process, which from then on is a daemon.

    Raises:
        WriteError: the file cannot be written.

    """

    def __init__(self, file: str = "", debug: bool = False, quiet: bool = False) -> None:
        """file: what is appended to, whatever happens on the terminal. quiet: show only warnings and errors there."""
        self._root = logging.getLogger()
        for handler in self._root.handlers[:]:  # the command line's, if we stay in front
            self._root.removeHandler(handler)
        self._root.setLevel(logging.DEBUG if debug else logging.INFO)
        self._terminal = logging.StreamHandler(sys.stderr)
        self._terminal.setLevel(logging.WARNING if quiet else logging.DEBUG)
        self._add(self._terminal, "fffs: %(message)s")
        warnings.showwarning = lambda message, *_, **__: logging.getLogger("fffs").warning("%s", message)
        self._file = bool(file)
        if file:
            self._open(file)

    def _open(self, file: str) -> None:
        try:
            handler = logging.FileHandler(file, errors="surrogateescape")
        except OSError as error:
            raise WriteError(error.errno or 0, file) from None
        self._add(handler, "%(asctime)s %(levelname)s %(message)s")

    def _add(self, handler: logging.Handler, layout: str) -> None:
        handler.setFormatter(logging.Formatter(layout))
        handler.addFilter(_Gone())
        self._root.addHandler(handler)

    def leave_terminal(self) -> None:
        """From now on nothing is written to the standard streams, and nothing read from them."""
        self._root.removeHandler(self._terminal)
        if not self._file and os.path.exists(SYSTEM_LOG):
            handler = logging.handlers.SysLogHandler(SYSTEM_LOG, logging.handlers.SysLogHandler.LOG_DAEMON)
            self._add(handler, f"fffs[{os.getpid()}]: %(message)s")
        elif not self._file:
            # Without a handler, logging would write warnings to stderr.
            self._root.addHandler(logging.NullHandler())
        null = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)
        os.close(null)


class _Gone(logging.Filter):
    """pyfuse3 logs an error when the kernel has no use for an answer: the process that asked was killed meanwhile."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.name.startswith("pyfuse3") and record.getMessage().endswith(os.strerror(2)))
