"""BagWriter: writes a Bag, record by record."""

from __future__ import annotations

import os
from typing import Any

from fffs.base.paths import PathLike
from fffs.base.views import readable_bytes
from fffs.errors import UsageError
from fffs.formats.bag_writer import NewBag
from fffs.granular.output import OutputWriter
from fffs.granular.streams import AppendedBag


class _NewBag:
    """A Bag in layout v1, which appears when it is complete."""

    def __init__(self, path: str) -> None:
        self._bag = NewBag(path)
        self.append, self.flush = self._bag.write_one, self._bag.flush
        self.finish, self.discard = self._bag.close, self._bag.discard

    def __len__(self) -> int:
        return self._bag.count

    @property
    def size(self) -> int:
        return self._bag.size


class _GrownBag:
    """A Bag in layout v3, to which records are added."""

    def __init__(self, path: str) -> None:
        self._bag = AppendedBag(path)
        try:
            self._bag.refuse_lost()
            self._bag.begin(self._bag.found)
        except BaseException:
            self._bag.close()
            raise
        self.append = self._bag.append

    def __len__(self) -> int:
        return len(self._bag)

    @property
    def size(self) -> int:
        return self._bag.size

    def flush(self) -> None:
        self._bag.write_records()
        self._bag.write_table()
        self._bag.keep()

    def finish(self) -> None:
        self.flush()
        self._bag.close()

    def discard(self) -> None:
        self._bag.rollback()
        self._bag.close()


class BagWriter(OutputWriter):
    """Writes records to a Bag.

    layout="v1" (granular 0.6.0 to 0.19.0, byte for byte): one file, which appears when the writer is closed; an older
    one stays as it is until then. layout="v3" (granular from 0.22): ``X.bag`` with ``X.idx``, appended to when they are
    there; what was flushed stays, whatever happens. Of what a killed writer left behind that, as much as one record may
    be is cut off, with a TornTailWarning; more is refused, with a word about how to cut it.

    Of two writers that append to one Bag the second is refused. Where the file system has no locks, it is not, and an
    UnlockedWarning says so. When the files are replaced or removed by somebody else, the next flush raises WriterError.

    Leaving the with-block by an exception forgets everything (v3: what was not flushed). Not thread-safe; not to be
    used in a child of fork.
    """

    def __init__(self, path: PathLike, layout: str = "v1") -> None:
        self.path = os.fsdecode(path)
        if layout not in ("v1", "v3"):
            raise UsageError(f"{self.path}: layout {layout!r} cannot be written, only v1 and v3")
        self.layout = layout
        self._output: _NewBag | _GrownBag = _NewBag(self.path) if layout == "v1" else _GrownBag(self.path)
        self._begin(self.path)

    def append(self, record: Any, flush: bool = False) -> int:
        """Add a record: the bytes of any C-contiguous buffer. Returns its number.

        Raises:
            TypeError: it is no buffer.
            WriterError: the writer is closed; or with flush, that the files are not those any more that it appends to.
            WriteError: the operating system could not write; the writer is closed, see the class for what stays.

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
