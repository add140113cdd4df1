"""The log file of a daemon, which is opened again when its name leads to another file, as after logrotate(8).

No source may be the log file: lines would be appended to it.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import stat
from collections.abc import Iterable
from typing import Final

from fffs.base.paths import is_same_file
from fffs.errors import UsageError
from fffs.files.sidecar_names import SIDECARS

# As in formats/bag.py, which imports numpy: fffs mount starts without it.
SUFFIX: Final = ".bag"
TABLE: Final = ".idx"  # of the Bag beside it


def refuse_source(log: str, sources: Iterable[str]) -> None:
    """Raise UsageError if a log file is a source, or describes one: lines at its end would damage it.

    log: an absolute path. sources: paths; what leads nowhere is ignored.
    """
    described = [log, *(log.removesuffix(ending) for ending in SIDECARS)]
    if log.endswith(TABLE):
        described.append(f"{log.removesuffix(TABLE)}{SUFFIX}")
    for source in sources:
        if any(is_same_file(name, source) for name in described):
            raise UsageError(
                f"-o log={log}: is the source {source}, or belongs to it, which it would damage; name another file"
            )


class LogFile(logging.FileHandler):
    """Appends lines to a file.

    There is no signal for opening it again: SIGHUP ends a daemon, as the end of a terminal sends it. Instead, each line
    is preceded by a look at the name. Raises OSError.
    """

    def __init__(self, path: str) -> None:
        self._streams: tuple[int, ...] = ()
        super().__init__(path, encoding="utf-8", errors="backslashreplace")

    def _open(self) -> io.TextIOWrapper:
        with contextlib.ExitStack() as opened:
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISFIFO(os.stat(self.baseFilename).st_mode):
                    # This fails if nothing reads it, where a plain open would wait.
                    opened.callback(os.close, os.open(self.baseFilename, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
            return super()._open()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, into the new file if there is one. If that cannot be opened, the old one is kept."""
        old = self.stream
        if old and not self._leads_to(old):
            with contextlib.suppress(OSError):
                self.stream = self._open()
                self._redirect()
                old.close()
        super().emit(record)

    def _leads_to(self, file: io.TextIOWrapper) -> bool:
        """Whether the name leads to an open file; True if that is unknown."""
        try:
            return os.path.samestat(os.stat(self.baseFilename), os.fstat(file.fileno()))
        except FileNotFoundError:
            return False
        except OSError:
            return True

    def take_streams(self, *descriptors: int) -> None:
        """Let these descriptors lead to the file from now on, also after it was opened again. Raises OSError."""
        self._streams = descriptors
        self._redirect()

    def _redirect(self) -> None:
        if self.stream:
            for fd in self._streams:
                os.dup2(self.stream.fileno(), fd)
