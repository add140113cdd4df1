"""BagWriter: writes a Bag, record by record."""

from __future__ import annotations

import os
from typing import Any

from fffs.base.buffers import readable_bytes
from fffs.base.failures import writing
from fffs.base.paths import PathLike, without_zero
from fffs.errors import UsageError
from fffs.formats.new_bag import NewBag
from fffs.granular.bag_streams import AppendedBag
from fffs.granular.output_writer import OutputWriter


class _NewBag:
    """A new Bag in layout v1, which appears when it is complete."""

    def __init__(self, path: str) -> None:
        self._bag = NewBag(path)
        self.append, self.flush = self._bag.write_one, self._bag.flush
        self.finish, self.discard = self._bag.close, self._bag.discard

    def __len__(self) -> int:
        return self._bag.count

    @property
    def size(self) -> int:
        return self._bag.size


def _grown_bag(path: str) -> GrownBag:
    """Open a Bag in layout v3, to append records."""
    bag = AppendedBag(path)
    try:
        bag.refuse_lost()
        bag.begin(bag.found)
    except BaseException:
        bag.close()
        raise
    return GrownBag(bag)


class GrownBag:
    """A Bag in layout v3, to which records are appended."""

    def __init__(self, bag: AppendedBag) -> None:
        self._bag = bag
        self.append = bag.append

    def __len__(self) -> int:
        return len(self._bag)

    @property
    def size(self) -> int:
        """The bytes of both files together."""
        return self._bag.size

    def flush(self) -> None:
        """Write what was appended, so that it is permanent. Raises WriteError."""
        for write, file in ((self._bag.write_records, self._bag.records), (self._bag.write_table, self._bag.entries)):
            write()
            with writing(self._bag.path):
                os.fdatasync(file)
        self._bag.keep()

    def finish(self) -> None:
        """Flush, and close the files. Raises WriteError."""
        self.flush()
        self._bag.close()

    def discard(self) -> None:
        """Drop what was not flushed, and close the files."""
        self._bag.rollback()
        self._bag.close()


class BagWriter(OutputWriter):
    """Writes records to a Bag.

    layout="v1" (granular 0.6.0 to 0.19.0, byte for byte): one file, which appears when the writer is closed; until then
    an existing file is unchanged. layout="v3" (granular from 0.22): ``X.bag`` with ``X.idx``. If they exist, records
    are appended; flushed records are permanent. A killed writer may leave further bytes after them. If these are no
    more than a record may have, they are cut off with a TornTailWarning; otherwise an error says how to cut them.
    Readers that were opened before, without checksums, raise SourceChangedError.

    A second writer that appends to the same Bag raises WriterError. On file systems without locks it does not; an
    UnlockedWarning says so. If another program replaces or removes the files, the next flush raises WriterError.

    An exception in the with-block discards everything (v3: what was not flushed). Not thread-safe; must not be used in
    a child of fork.

    Examples:
        >>> with fffs.granular.BagWriter("new.bag") as writer:
        ...     number = writer.append(b"one")
        >>> fffs.granular.BagReader("new.bag")[0]
        b'one'

    """

    def __init__(self, path: PathLike, layout: str = "v1") -> None:
        self.path = without_zero(path)
        if layout not in ("v1", "v3"):
            raise UsageError(f"{self.path}: layout {layout!r} cannot be written, only v1 and v3")
        self.layout = layout
        self._output: _NewBag | GrownBag = _NewBag(self.path) if layout == "v1" else _grown_bag(self.path)
        self._begin(self.path)

    def append(self, record: Any, flush: bool = False) -> int:
        """Add a record, the bytes of any C-contiguous buffer. Returns its number.

        Raises:
            TypeError: the record is not a buffer.
            WriterError: the writer is closed; or, with flush, the files were replaced or removed.
            WriteError: the operating system could not write. The writer is closed; the class says which records stay.

        """
        self._need_open()
        data = readable_bytes(record)
        try:
            self._output.append(data)
        except BaseException:
            self.discard()
            raise
        if flush:
            self.flush()
        return len(self._output) - 1
