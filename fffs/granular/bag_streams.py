"""AppendedBag: appends to a Bag of two files."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import stat
import warnings

import numpy as np

from fffs.base.descriptors import above_standard, duplicate
from fffs.base.failures import writing
from fffs.errors import MetadataError, UsageError, WriteError, WriterError
from fffs.files.atomic import forget_checksums, open_place, sync_place
from fffs.files.file_systems import has_inode_numbers
from fffs.files.local import LocalFile
from fffs.files.pair import only_writer
from fffs.files.pwrite import NewFile, write_at
from fffs.files.rights import Rights, rights_of
from fffs.files.temporary import close_locked, is_there, lock
from fffs.formats.bag import SUFFIX, load_index, sidecars
from fffs.granular.record_stream import GrowingStream
from fffs.records.index import Int64Array

_OPEN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class TornTailWarning(UserWarning):
    """A stopped writer left data after the complete records or rows. The data was cut off."""


class UnlockedWarning(UserWarning):
    """A Bag that is appended to cannot be locked. Two writers at once would destroy it."""


def _name_of(path: str) -> bytes:
    return os.path.basename(os.fsencode(path))


class AppendedBag:
    """A Bag in layout v3, new or existing, locked against other writers. Not thread-safe.

    Open it, then call ``begin``. ``write_records``, ``write_table`` and ``keep``, in this order, make appended records
    visible, and permanent if the caller syncs ``records`` and ``entries`` after the first two. ``rollback`` discards
    records that were not kept. A killed writer leaves what it had flushed.
    """

    may_lack_table = False
    """Whether records without a table are records that a writer had not flushed."""

    def __init__(self, path: str, place: int | None = None, *, cut: bool = False) -> None:
        """place: its folder, if that is open already. Later changes of the working folder do not redirect a step.

        cut: of a truncated Bag, load the records that are left; otherwise it is an error.
        """
        self.path, self.table = path, sidecars(path)[0]
        self._name, self._table_name = map(_name_of, (path, self.table))
        with writing(path):
            self._folder = open_place(path) if place is None else duplicate(place)
        self._bag = self._index = -1
        self._owner = os.getpid()
        try:
            self._open()
            self._ends = self._load(cut)
        except BaseException:
            self.close()
            raise
        self.found = len(self._ends)
        """The number of complete records."""

    def _open(self) -> None:
        if not self.path.endswith(SUFFIX):
            raise UsageError(f"{self.path}: the name of a Bag must end in {SUFFIX}")
        # While a Bag is replaced, neither of its files exists: this would make new ones, which would then be replaced.
        with only_writer(self.path, self._folder):
            self._open_files()

    def _open_files(self) -> None:
        try:
            has_table, has_records = is_there(self._folder, self._table_name), is_there(self._folder, self._name)
            if has_table and not has_records:
                raise MetadataError(f"{self.table}: this table exists, but {self.path} with the records is missing")
            lacks_table = has_records and not has_table and self._look_at(self._name).st_size > 0
            if lacks_table and not self.may_lack_table:
                raise UsageError(f"{self.path}: cannot append: a Bag in another layout, or {self.table} is missing")
            self._bag = above_standard(os.open(self._name, _OPEN, 0o666, dir_fd=self._folder))
            self._lock()
            self._refuse_replaced((self._bag, self.path))
            if not lacks_table:
                self._open_table()
            if not all(stat.S_ISREG(os.fstat(fd).st_mode) for fd in (self._bag, self._index) if fd >= 0):
                raise UsageError(f"{self.path}: not a regular file")
            if not has_table:
                sync_place(self._folder)
        except BlockingIOError:
            raise WriterError(f"{self.path}: another writer is appending to it") from None
        except OSError as error:
            raise WriteError(error.errno, self.path) from error

    def _open_table(self) -> None:
        """Open the file with the table, or make it. Raises OSError."""
        self._index = above_standard(os.open(self._table_name, _OPEN, 0o600, dir_fd=self._folder))
        if not os.fstat(self._index).st_size:
            with contextlib.suppress(PermissionError):  # an existing file of another user
                self.rights().give(self._index, 0o600)

    def _look_at(self, name: bytes) -> os.stat_result:
        return os.stat(name, dir_fd=self._folder, follow_symlinks=False)

    def _lock(self) -> None:
        if not lock(self._bag, fcntl.LOCK_EX | fcntl.LOCK_NB):
            warnings.warn(
                f"{self.path}: its file system has no locks: make sure that no other writer appends to this file",
                UnlockedWarning,
                stacklevel=2,
            )

    def _refuse_replaced(self, *files: tuple[int, str]) -> None:
        """Raise WriterError unless paths still lead to the open files. Another program may have replaced or removed
        them in spite of the lock, and whatever is written to the old files would be lost.
        """
        for fd, path in files:
            ours, there = os.fstat(fd), None
            with contextlib.suppress(FileNotFoundError):
                there = self._look_at(_name_of(path))
            if there is None or (has_inode_numbers(fd) and not os.path.samestat(ours, there)):
                raise WriterError(
                    f"{path}: it was replaced or removed while a writer was appending to it; the records of this "
                    "writer are lost, write them again"
                )

    def _load(self, cut: bool) -> Int64Array:
        """Return the ends of the existing records."""
        if self._index < 0:
            return np.empty(0, np.int64)
        with LocalFile(duplicate(self._bag), self.path) as bag:
            index = load_index(bag, layout="v3")
        if index.truncated and not cut:
            raise MetadataError(
                f"{self.path}: cannot append: it ends at byte {index.file_size}, before the last record in its table; "
                "it was truncated, copy it again"
            )
        return index.ends[: np.searchsorted(index.ends, index.file_size, side="right")]

    def refuse_lost(self) -> None:
        """Raise MetadataError if more bytes follow the records than one unfinished record may have. They may be records
        whose table entries are missing, as while a copy is in progress, not only what a killed writer had not flushed.
        """
        ends = self._ends
        end, largest = (int(ends[-1]), int(np.diff(ends, prepend=0).max())) if len(ends) else (0, 0)
        with writing(self.path):
            behind = os.fstat(self._bag).st_size - end
        if behind > largest:
            raise MetadataError(
                f"{self.path}: {behind} bytes follow the {len(ends)} records of {self.table}, more than a record has; "
                f"wait for a copy to finish, or copy both files again; if a writer was killed, cut off what it had not "
                f"flushed: truncate -s {end} {shlex.quote(self.path)}"
            )

    def begin(self, count: int, *, asked: bool = False) -> None:
        """Keep the first ``count`` of the existing records, and append after them. asked: cut off the rest silently.

        Warns:
            TornTailWarning: data follows them. It is cut off, unless the warning is made an error.

        """
        self._kept, self._kept_end = count, int(self._ends[count - 1]) if count else 0
        self._ends = self._ends[:0]
        if self._is_torn() and not asked:
            warnings.warn(
                f"{self.path}: cut off what a stopped writer left after the first {count} records",
                TornTailWarning,
                stacklevel=4,
            )
        with writing(self.path):
            forget_checksums(self._name, self._folder)
        self._stream = GrowingStream(NewFile(self._bag, self.path), self._kept_end, self._folder)
        self._truncate()

    def _is_torn(self) -> bool:
        """Return whether data follows the kept records."""
        with writing(self.path):
            return any(os.fstat(fd).st_size != size for fd, size in self._sizes())

    def _sizes(self) -> tuple[tuple[int, int], ...]:
        """Return the open files, each with its size for the kept records alone."""
        sizes = (self._bag, self._kept_end), (self._index, 8 * self._kept)
        return sizes if self._index >= 0 else sizes[:1]

    def _truncate(self) -> None:
        """Cut off data after the kept records, durably, and delete checksums of it."""
        if self._is_torn():
            with writing(self.path):
                for fd, size in self._sizes()[::-1]:  # the table first: every entry must have its record
                    os.ftruncate(fd, size)
                    os.fsync(fd)
                forget_checksums(self._name, self._folder)

    def __len__(self) -> int:
        return self._kept + len(self._stream.ends)

    @property
    def size(self) -> int:
        """The size in bytes of both files together after a flush."""
        return self._stream.end + 8 * len(self)

    def append(self, data: memoryview) -> None:
        """Add a record. Raises WriteError."""
        self._stream.append(data)

    @property
    def records(self) -> int:
        """The descriptor of the file with the records."""
        return self._bag

    @property
    def entries(self) -> int:
        """The descriptor of the file with the table."""
        return self._index

    def write_records(self) -> None:
        """Write the records, the first half of a flush. Readers see them after ``write_table``."""
        self._stream.drain()

    def write_table(self) -> None:
        """Write the new table entries, the second half of a flush. Raises WriterError: the files were replaced."""
        if self._index < 0:
            with writing(self.table):
                self._open_table()
        self.look()
        write_at(NewFile(self._index, self.table), [np.array(self._stream.ends, "<u8").tobytes()], 8 * self._kept)

    def look(self) -> None:
        """Look at what other programs did. Raises WriterError if the files were replaced; checksums are deleted."""
        self._refuse_replaced((self._bag, self.path), (self._index, self.table))
        with writing(self.path):
            forget_checksums(self._name, self._folder)

    def keep(self) -> None:
        """After a flush, exclude the written records from ``rollback``."""
        self._kept, self._kept_end = len(self), self._stream.end
        del self._stream.ends[:]

    def rights(self) -> Rights:
        """Return the rights of a file that belongs to the Bag. Raises OSError."""
        return rights_of(self._bag, 0o666)

    def rollback(self) -> int | None:
        """Discard records appended since the last flush. Nothing can be appended afterwards.

        Returns the number of records that are left, or None if the others could not be discarded.
        """
        try:
            self._truncate()
        except WriteError:
            return None
        return self._kept

    def close(self) -> None:
        """Close the files without writing to them."""
        for fd in (self._bag, self._index, self._folder):
            if fd >= 0:
                close_locked(fd, self._owner)
        self._bag = self._index = self._folder = -1
