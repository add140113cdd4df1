"""NewBag: writes a whole Bag, record by record or in batches. Also locks Bags that are replaced."""

from __future__ import annotations

import contextlib
import fcntl
import os
from array import array
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from fffs.base.buffers import readable_bytes
from fffs.errors import UsageError, WriterError
from fffs.files.atomic import AtomicFile
from fffs.files.file import File, UInt8Array
from fffs.files.pair import commit_pair, only_writer
from fffs.files.pwrite import write_at
from fffs.files.temporary import close_locked, lock
from fffs.formats.bag import SUFFIX, encode_table, load_index, load_with_table, refuse_target, sidecars
from fffs.formats.record_writer import RecordWriter, Target, path_of
from fffs.objects.names import is_url
from fffs.records.index import Int64Array, RecordIndex


class NewBag(RecordWriter):
    """Writes a new Bag to ``fname``. ``close`` puts the complete file in place; an older one stays until then.

    layout="v3": the table is a second file beside it, which is put in place first, because a Bag without its table
    would be taken for one in another layout. Not thread-safe. A forked child must not use it.
    """

    def __init__(self, fname: Target, layout: str = "v1") -> None:
        path = path_of(fname)
        refuse_target(path, layout)
        if layout == "v3" and is_url(path):
            raise UsageError(f"{path}: a Bag of layout v3 is two files, which a store cannot put in place together")
        self._ends = array("Q")
        self._end = 0
        self._table: AtomicFile | None = None
        super().__init__(fname)
        if layout == "v3":
            try:
                self._table = AtomicFile(sidecars(path)[0])
            except BaseException:
                self.discard()
                raise

    def write_one(self, buffer: Any) -> None:
        """Append one record: the bytes of any C-contiguous buffer. Raises as the other writers' ``write_one``."""
        self._need_unfinished()
        data = readable_bytes(buffer)
        self._end += data.nbytes
        self._ends.append(self._end)
        self._append((data,))

    def _frame(self, data: UInt8Array, bounds: Int64Array) -> list[Any]:
        self._ends.frombytes((self._end + bounds[1:] - bounds[0]).tobytes())
        self._end += len(data)
        return [data]

    def flush(self) -> None:
        """Pass everything that is buffered to the operating system. Raises WriteError."""
        self._need_open()
        self._guarded(self._stream.flush)

    @property
    def size(self) -> int:
        """The size in bytes of the Bag with its table in layout v1."""
        return self._end + 8 * (len(self._ends) + 1)

    def _finish(self) -> None:
        if self._table is None:
            self._stream.write(encode_table(self._ends))
        else:
            write_at(self._table, [np.array(self._ends, "<u8").tobytes()], 0)
        super()._finish()

    def _load_index(self, file: File) -> RecordIndex:
        if self._table is None:
            return load_index(file, layout="v1")
        with self._table.reread() as table:
            return load_with_table(file, table)

    def keep_existing(self) -> None:
        """As ``RecordWriter``; ``close`` fails as well if another file has the name of the table."""
        super().keep_existing()
        if self._table is not None:
            self._table.replaces = False

    def _commit(self) -> None:
        try:
            for file in filter(None, (self._file, self._table)):
                file.sync()
            if not isinstance(self._file, AtomicFile):  # an object, whose table is in it
                super()._commit()
                return
            # While a pair of files is put in place, no other writer may do so, in any layout.
            place = self._file.folder
            with only_writer(self.fname, place):
                refuse_target(self.fname, "v1" if self._table is None else "v3", place)
                if self._table is None:
                    super()._commit()
                    return
                self._table.belongs_to(self._file)
                with no_appenders([self.fname], place):  # also to a Bag that was made since this writer began
                    commit_pair(self._table, self._file)
        except BaseException:
            self._forget()
            raise

    def _forget(self) -> None:
        try:
            super()._forget()
        finally:
            if self._table is not None:
                self._table.discard()


@contextlib.contextmanager
def no_appenders(paths: Iterable[str], place: int | None = None) -> Iterator[None]:
    """Hold the locks of Bags that are to be replaced, so that no writer appends to them meanwhile. On file systems
    without locks, such a writer detects the replacement when it flushes. place: their folder, if that is open already.

    Raises:
        WriterError: a writer is appending to one of them; what it appends would be lost.

    """
    with contextlib.ExitStack() as locks:
        for path in paths:
            if not path.endswith(SUFFIX):
                continue
            try:
                name = path if place is None else os.path.basename(path)
                fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place)
                locks.callback(close_locked, fd, os.getpid())
                lock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                raise WriterError(f"{path}: a writer is appending to it; replace it when that is closed") from None
            except OSError:  # missing, no file that a writer could append to, or without locks
                continue
        yield
