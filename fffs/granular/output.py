"""OutputWriter: what the writers of Bags and of data sets do alike with what they write into."""

from __future__ import annotations

from typing import Protocol

from fffs.base.withblock import Writing


class Output(Protocol):
    """A Bag, or the Bags of a data set: new ones, or such that grow."""

    @property
    def size(self) -> int:
        """Bytes with all tables, if it were finished now."""

    def __len__(self) -> int: ...

    def flush(self) -> None:
        """Give to the operating system what was added; what grows is permanent then."""

    def finish(self) -> None:
        """Write the rest and put all in place."""

    def discard(self) -> None:
        """Forget what is not permanent."""


class OutputWriter(Writing):
    """A writer into an output, which is set before ``_begin``. When that cannot be written, the writer is closed."""

    _output: Output

    def flush(self) -> None:
        """v3: make what was appended so far permanent and visible. v1: give it to the operating system."""
        self._need_open()
        try:
            self._output.flush()
        except BaseException:
            self.discard()
            raise

    def close(self) -> None:
        """Write the rest and put everything in place. May be called again. Raises WriteError."""
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
        """Bytes of all files with their tables, if the writer were closed now."""
        return self._output.size

    def __len__(self) -> int:
        """How many records or rows there will be."""
        return len(self._output)
