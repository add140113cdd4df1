"""The log of a daemon: on the terminal while it starts or runs in the foreground, then in a file or the system log.

Every failure is logged, one line for each event; line ends and escape sequences in file names are escaped. A thread
writes the lines: a system log that is stopped, or a pipe that is not read, must not stop the event loop.
"""

from __future__ import annotations

import atexit
import copy
import faulthandler
import functools
import logging
import logging.handlers
import os
import queue
import re
import sys
import threading
import warnings
from types import TracebackType
from typing import Any

from fffs.base.failures import writing
from fffs.mount.daemon.log_file import LogFile

SYSTEM_LOG = "/dev/log"
ROOM = 10_000
"""The number of lines that may wait to be written. Further lines are dropped and counted."""
PATIENCE = 2.0
"""Seconds that a daemon that ends waits for its log."""

_log = logging.getLogger("fffs")
# Control characters, line separators, and bytes that are not UTF-8, which the system log does not accept.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class DaemonLog:
    """The log of this process, which is a daemon. One per process.

    Raises:
        WriteError: the file cannot be written.

    """

    def __init__(self, file: str = "", debug: bool = False, quiet: bool = False) -> None:
        """file: appended to, in addition to the terminal. quiet: show only warnings and errors on the terminal."""
        self._root = logging.getLogger()
        for handler in self._root.handlers[:]:  # those of the command line, if we run in the foreground
            self._root.removeHandler(handler)
        self._root.setLevel(logging.DEBUG if debug else logging.INFO)
        # With tracebacks of errors that are raised, too.
        logging.getLogger("paramiko").setLevel(logging.DEBUG if debug else logging.CRITICAL)
        self._lines = _Lines()
        self._root.addHandler(self._lines)
        self._terminal = logging.StreamHandler(sys.stderr)
        self._terminal.setLevel(logging.WARNING if quiet else logging.DEBUG)
        self._add(self._terminal, "fffs: %(message)s")
        self._file: LogFile | None = None
        if file:
            self._file = self._open(file)
        _log_what_python_prints()
        self.exit_code = 1
        """The exit code of the process if its log accepts no lines at the end."""
        atexit.register(self._leave)

    def _leave(self) -> None:
        """Exit without closing the handlers if the log accepts no lines; closing them would wait for ever."""
        if not self._lines.write_out():
            os._exit(self.exit_code)

    def _open(self, file: str) -> LogFile:
        with writing(file):
            handler = LogFile(file)
        self._add(handler, "%(asctime)s %(levelname)s %(message)s")
        return handler

    def _add(self, handler: logging.Handler, layout: str) -> None:
        handler.setFormatter(_OneLine(layout))
        handler.addFilter(_Gone())
        handler.handleError = functools.partial(self._lines.writer.note_failure, handler)  # type: ignore[method-assign]
        self._lines.writer.handlers = (*self._lines.writer.handlers, handler)

    def leave_terminal(self) -> None:
        """Replace the standard streams: nothing is read from them, and what is written to them goes to the log file."""
        if not self._file and not os.path.exists(SYSTEM_LOG):
            _log.warning("no errors will be logged: there is no system log (%s); use -o log=FILE", SYSTEM_LOG)
        self._lines.write_out()
        self._lines.writer.handlers = tuple(h for h in self._lines.writer.handlers if h is not self._terminal)
        if not self._file and os.path.exists(SYSTEM_LOG):
            self._add(_SystemLog(), f"fffs[{os.getpid()}]: %(message)s")
        null = os.open(os.devnull, os.O_RDWR)
        # libfuse and a crashing interpreter write to stderr only.
        if self._file:
            self._file.take_streams(1, 2)
        for fd in (0,) if self._file else (0, 1, 2):
            os.dup2(null, fd)
        os.close(null)


class _SystemLog(logging.Handler):
    """Connects to the system log in the thread that writes: connecting to a stopped one never returns."""

    def __init__(self) -> None:
        super().__init__()
        self._connected: logging.Handler | None = None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self._connected is None:
                self._connected = logging.handlers.SysLogHandler(SYSTEM_LOG, logging.handlers.SysLogHandler.LOG_DAEMON)
                self._connected.setFormatter(self.formatter)
                self._connected.handleError = self.handleError  # type: ignore[method-assign]
            self._connected.emit(record)
        except OSError:
            self.handleError(record)


def write_out() -> bool:
    """Wait until the log is written, at most PATIENCE seconds. Returns whether it is."""
    lines = (handler for handler in logging.getLogger().handlers if isinstance(handler, _Lines))
    return all(handler.write_out() for handler in lines)


class _Lines(logging.handlers.QueueHandler):
    """Passes lines to a thread that writes them. Lines that do not fit into the queue are counted."""

    def __init__(self) -> None:
        self._waiting: queue.Queue[logging.LogRecord | threading.Event] = queue.Queue(ROOM)
        super().__init__(self._waiting)
        self.lost = 0
        self.writer = _Writer(self)
        self.writer.start()

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Format the line now: its arguments may change later, and a traceback would keep its frames alive."""
        record = copy.copy(record)
        record.msg, record.args = record.getMessage(), None
        if record.exc_info:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
            record.exc_info = None
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        """Put a line into the queue, or count it if the queue is full. Does not wait."""
        try:
            self._waiting.put_nowait(record)
        except queue.Full:
            self.lost += 1

    def write_out(self) -> bool:
        """Wait until all lines so far are written, at most PATIENCE seconds. Returns whether they are."""
        written = threading.Event()
        try:
            self._waiting.put(written, timeout=PATIENCE)
        except queue.Full:
            return False
        return written.wait(PATIENCE)


class _Writer(logging.handlers.QueueListener):
    """The thread that writes lines."""

    def __init__(self, lines: _Lines) -> None:
        super().__init__(lines.queue, respect_handler_level=True)
        self._lines = lines
        self._failed: dict[logging.Handler, int] = {}  # lines that each handler could not write

    def handle(self, record: logging.LogRecord | threading.Event) -> None:
        """Write a line, or set an event: all lines before it are written."""
        if isinstance(record, threading.Event):
            record.set()
            return
        failed = dict(self._failed)
        super().handle(record)
        for handler, count in failed.items():
            if self._failed[handler] == count:  # this line was written
                del self._failed[handler]
                handler.handle(_note(f"{count} lines are missing here: they could not be written"))
        if lost := self._lines.lost:
            self._lines.lost = 0
            super().handle(_note(f"{lost} lines are missing here: the log did not take them in time"))

    def note_failure(self, handler: logging.Handler, record: logging.LogRecord) -> None:
        """Count a line that a handler could not write, as on a full disk, and report that once through the others.

        Called by the handler, while it handles the exception. logging would print a traceback on the terminal.
        """
        first, self._failed[handler] = handler not in self._failed, self._failed.get(handler, 0) + 1
        if first:
            where = getattr(handler, "baseFilename", "the log")
            for other in self.handlers:
                if other is not handler:
                    other.handle(_note(f"{where}: cannot be written: {sys.exc_info()[1]}"))


def _note(text: str) -> logging.LogRecord:
    return logging.LogRecord("fffs", logging.WARNING, __file__, 0, text, None, None)


def _log_what_python_prints() -> None:
    """Log warnings and uncaught exceptions, which would be lost on the stderr of a daemon."""

    def uncaught(kind: type[BaseException], error: BaseException | None, where: TracebackType | None) -> None:
        if error is not None and not issubclass(kind, (KeyboardInterrupt, BrokenPipeError, SystemExit)):
            _log.critical("uncaught %s", kind.__name__, exc_info=(kind, error, where))

    def unraisable(what: Any) -> None:
        information = (what.exc_type, what.exc_value or what.exc_type(), what.exc_traceback)
        _log.error("%s in %r", what.err_msg or "Exception ignored", what.object, exc_info=information)

    def warned(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any, **__: Any) -> None:
        _log.warning("%s: %s (%s:%d)", category.__name__, message, filename, lineno)

    sys.excepthook = uncaught
    sys.unraisablehook = unraisable
    threading.excepthook = lambda what: uncaught(what.exc_type, what.exc_value, what.exc_traceback)
    warnings.showwarning = warned
    faulthandler.enable()


class _OneLine(logging.Formatter):
    """Escapes line ends and control characters. Only tracebacks have several lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return _UNSAFE.sub(_escape, super().formatMessage(record))


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:  # a byte, as os.fsdecode shows it
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class _Gone(logging.Filter):
    """Drops an error that pyfuse3 logs when the kernel refuses a reply because the process that asked was killed."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.name.startswith("pyfuse3") and record.getMessage().endswith(os.strerror(2)))
