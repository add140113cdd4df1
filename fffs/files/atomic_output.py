"""AtomicOutput: what files and objects that appear complete or not at all have in common."""

from __future__ import annotations

import io
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

from fffs.files.local import LocalFile


class AtomicOutput(Protocol):
    """A new file or object. ``fd`` is open for reading and writing; report what is written to ``wrote``."""

    fd: int
    path: str
    in_place: bool
    replaces: bool

    def expect_size(self, total: int) -> None:
        """Set about what the size will be. Called before anything is written, if it is known."""

    def raw(self) -> RawWriter:
        """Return a raw file object that writes to ``fd`` and reports to ``wrote``."""

    def wrote(self, offset: int, size: int) -> None:
        """Say that a range is written, and will not change. From any thread. Raises what sending raises."""

    def cancel(self) -> None:
        """Let ``wrote`` raise ``Stopped`` in threads that wait there; ``discard`` follows."""

    def sync(self) -> None:
        """Write all data to the disk. Raises WriteError."""

    def reread(self) -> LocalFile:
        """Open what was written for reading. Raises WriteError, ReadError, UsageError."""

    def commit(self) -> None:
        """Put it in place. Raises WriteError."""

    def discard(self) -> None:
        """Remove it. May be called again, and after ``commit``."""

    def __enter__(self) -> AtomicOutput:
        """Return itself."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Discard."""


NewOutput = Callable[[], AtomicOutput]
"""Makes a new file or object, as ``new_output`` does."""


class RawWriter(io.FileIO):
    """The descriptor of an output as a raw file object, which does not close it."""

    def __init__(self, output: AtomicOutput) -> None:
        super().__init__(output.fd, "wb", closefd=False)
        self._output = output

    def write(self, data: Any, /) -> int:
        """Write, and report it."""
        at = self.tell()
        size = super().write(data)
        self._output.wrote(at, size or 0)
        return size
