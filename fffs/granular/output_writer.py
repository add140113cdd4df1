"""OutputWriter: the common base of the writers of Bags and of data sets."""

from __future__ import annotations

from typing import Protocol

from fffs.base.withblock import Writing


class Output(Protocol):
    """A Bag, or the Bags of a data set: new ones, or existing ones that are appended to."""

    @property
    def size(self) -> int:
        """The size in bytes, with all tables, that it would have if it were finished now."""

    def __len__(self) -> int: ...

    def flush(self) -> None:
        """Pass added data to the operating system. Data that was appended to existing Bags is then permanent."""

    def finish(self) -> None:
        """Write the rest, and rename new files into place."""

    def discard(self) -> None:
        """Discard everything that is not permanent."""


class OutputWriter(Writing):
    """Writes to ``_output``, which is set before ``_begin``. An error while writing closes the writer."""

    _output: Output

    def flush(self) -> None:
        """v3: make all records so far permanent and visible. v1: pass them to the operating system."""
        self._need_open()
        try:
            self._output.flush()
        except BaseException:
            self.discard()
            raise

    def close(self) -> None:
        """Write the rest, and rename new files into place. May be called again. Raises WriteError."""
        if self.closed:
            return
        self._need_open()
        try:
            self._output.finish()
        except BaseException:
            self.discard()
            raise
        self.closed = True

    def _forget(self) -> None:
        self._output.discard()

    @property
    def size(self) -> int:
        """The size in bytes of all files with their tables if the writer were closed now."""
        return self._output.size

    def __len__(self) -> int:
        """Return the number of records or rows, including those that existed before."""
        return len(self._output)
