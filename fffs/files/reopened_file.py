"""ReopenedFile: one of many local files, of which only a few are open at a time."""

from __future__ import annotations

import threading
from typing import Any, Final

from fffs.base.paths import current_folder
from fffs.errors import SourceChangedError
from fffs.files.file import File, UInt8Array
from fffs.files.local import LocalFile

OPEN: Final = 64  # files of a set that are open at a time, when there can be more than a process may open


class OpenFiles:
    """The files of a set that are open, those that were read last. Thread-safe."""

    def __init__(self, most: int = OPEN) -> None:
        self._most, self._lock = most, threading.Lock()
        self._open: dict[ReopenedFile, LocalFile] = {}  # the one that was read last comes last

    def read_at(self, file: ReopenedFile, offset: int, dest: UInt8Array, detail: str) -> int:
        """Read from a file, after opening it if it is not open. Raises as ``ReopenedFile.read_at``."""
        with self._lock:
            opened = self._open.pop(file, None) or file.reopen()
            self._open[file] = opened
            while len(self._open) > self._most:
                self._open.pop(next(iter(self._open))).close()
            return opened.read_at(offset, dest, detail)

    def close(self, file: ReopenedFile) -> None:
        """Close a file, if it is open."""
        with self._lock:
            if opened := self._open.pop(file, None):
                opened.close()


class ReopenedFile(File):
    """A local file that is opened again when it is read, unless it was read lately.

    A set of files that is read once, in order, may have more files than a process may open.
    """

    def __init__(self, path: str, files: OpenFiles) -> None:
        """files: of the set. Raises as ``LocalFile.open``."""
        self._files, self._folder = files, current_folder()
        with LocalFile.open(path, self._folder) as file:
            super().__init__(file.name, file.size)
            self.mtime_ns, self.device, self._stamp = file.mtime_ns, file.device, file.stamp()

    def reopen(self) -> LocalFile:
        """Open the file. Raises SourceChangedError: it is not as it was; SourceNotFoundError, ReadError."""
        file = LocalFile.open(self.name, self._folder)
        if file.changed(self._stamp):
            file.close()
            raise SourceChangedError(f"{self.name}: changed while it was read; convert it when nothing writes to it")
        return file

    def read_at(self, offset: int, dest: UInt8Array, detail: str = "") -> int:
        """As in ``File``. Raises SourceChangedError and SourceNotFoundError, too."""
        return self._files.read_at(self, offset, dest, detail)

    def stamp(self) -> Any:
        """Return size, modification time and inode as of opening."""
        return self._stamp

    def close(self) -> None:
        """Close the file, if it is open."""
        self._files.close(self)
