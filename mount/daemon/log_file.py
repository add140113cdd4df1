"""The log file of a daemon, which is opened again when its name leads to another file, as after logrotate(8).

No source may be the log file: lines would be appended to it.
"""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import stat
from collections.abc import Iterable
from typing import Final

from fffs.base.descriptors import above_standard
from fffs.base.paths import is_same_file
from fffs.errors import UsageError
from fffs.files.dirfd import close, open_plain
from fffs.files.sidecar_names import SIDECARS

# As in formats/bag.py, which imports numpy: fffs mount starts without it.
SUFFIX: Final = ".bag"
TABLE: Final = ".idx"  # of the Bag beside it

_AGAIN: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


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
    is preceded by a look at the name. Symbolic links are followed once, when the file is opened first: afterwards,
    whoever may write to a folder on the way could have the lines written to any file. Raises OSError.
    """

    def __init__(self, path: str) -> None:
        self._streams: tuple[int, ...] = ()
        super().__init__(path, encoding="utf-8", errors="backslashreplace")
        above, self._name = os.path.split(os.path.realpath(self.baseFilename))
        self._folder = -1  # where the file is opened again; a pipe, for example, is in no folder
        with contextlib.suppress(OSError):
            self._folder = folder = open_plain(above)
            if not (self.stream and self._leads_to(self.stream)):
                self._folder = -1
                close(folder)

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
                self.stream = self._open_again()
                self._redirect()
                old.close()
        super().emit(record)

    def _open_again(self) -> io.TextIOWrapper:
        """Open the file that the name leads to now, or a new one. Raises OSError if it is no plain file."""
        fd = above_standard(os.open(self._name, _AGAIN, 0o666, dir_fd=self._folder))
        status = os.fstat(fd)
        if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:  # others may have linked any file here
            return open(fd, "a", encoding=self.encoding, errors=self.errors)
        close(fd)
        raise OSError(errno.EPERM, "it is not a regular file with a single name", self.baseFilename)

    def _leads_to(self, file: io.TextIOWrapper) -> bool:
        """Whether the name leads to an open file; True if that is unknown."""
        try:
            return self._folder < 0 or os.path.samestat(self._find(), os.fstat(file.fileno()))
        except FileNotFoundError:
            return False
        except OSError:
            return True

    def _find(self) -> os.stat_result:
        return os.stat(self._name, dir_fd=self._folder, follow_symlinks=False)

    def take_streams(self, *descriptors: int) -> None:
        """Let these descriptors lead to the file from now on, also after it was opened again. Raises OSError."""
        self._streams = descriptors
        self._redirect()

    def _redirect(self) -> None:
        if self.stream:
            for fd in self._streams:
                os.dup2(self.stream.fileno(), fd)
