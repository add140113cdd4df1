"""LocalFile: a file of a mounted file system, read by the engine."""

from __future__ import annotations

import contextlib
import io
import os
import stat
from collections.abc import Iterator
from typing import Any

import numpy.typing as npt

from fffs.base.descriptors import above_standard
from fffs.base.failures import reading
from fffs.base.paths import PathLike, current_folder, without_zero
from fffs.base.times import nearest_time
from fffs.errors import ReadError, SourceNotFoundError, UsageError, WriteError
from fffs.files.dirfd import close
from fffs.files.file import File, UInt8Array
from fffs.files.file_systems import has_inode_numbers
from fffs.files.leases import open_waiting
from fffs.files.pwrite import Writable
from fffs.files.stamps import make_stamp
from fffs.native import engine, ffi, lib


class LocalFile(File):
    """A regular file, open for reading. ``status`` is the result of fstat when it was opened."""

    def __init__(self, descriptor: int, name: str, folder: str | None = None) -> None:
        """Take over an open descriptor, and close it on errors. Raises ReadError.

        folder: that the name begins in if it is relative; None: the current one.
        """
        try:
            with reading(name):
                self.status = os.fstat(descriptor)
        except BaseException:
            close(descriptor)
            raise
        super().__init__(name, self.status.st_size)
        self.descriptor = descriptor
        self.device, self.mtime_ns = self.status.st_dev, nearest_time(self.status.st_mtime_ns)
        self._direct: tuple[int, int] | None = None
        self._folder = current_folder() if folder is None else folder

    @classmethod
    def open(cls, path: PathLike, folder: str | None = None) -> LocalFile:
        """Open a regular file. folder: that the path begins in if it is relative; None: the current one.

        Raises:
            SourceNotFoundError: there is no such file.
            UsageError: it is not a regular file.
            ReadError: it cannot be opened.

        """
        name = without_zero(path)
        folder = current_folder() if folder is None else folder
        try:
            descriptor = above_standard(open_waiting(_from_here(folder, name)))
        except FileNotFoundError:
            raise SourceNotFoundError(f"{name}: no such file") from None
        except OSError as error:
            raise ReadError(error.errno, name) from error
        file = cls(descriptor, name, folder)
        if not stat.S_ISREG(file.status.st_mode):
            file.close()
            raise UsageError(f"{name}: not a regular file")
        return file

    def close(self) -> None:
        """Close the file, and the descriptor of ``open_direct``."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            close(descriptor)
        if self._direct is not None:
            close(self._direct[0])
            self._direct = None

    # ------------------------------------------------------------ bytes

    def read_at(self, offset: int, dest: UInt8Array, detail: str = "") -> int:
        """Read with pread(2) until the memory is full or the file ends."""
        done = 0
        with reading(self.name, detail):
            while done < len(dest) and (got := os.preadv(self.descriptor, [dest.data[done:]], offset + done)):
                done += got
        return done

    # Static: a batch with records of several local files is one call into C.
    @staticmethod
    def read_batch(requests: npt.NDArray[Any]) -> bool:
        """By the engine."""
        return engine.read_batch(requests)

    def copy_to(self, target: Writable, at: int, offset: int, size: int, check: int) -> tuple[int, int]:
        """Copy in C, through a bounded buffer."""
        crc, failed = ffi.new("uint32_t *"), ffi.new("int *")
        status = lib.fffs_copy(self.descriptor, offset, target.fd, at, size, check, crc, ffi.NULL, failed)
        if status and failed[0] == target.fd:
            raise WriteError(-status, target.path)
        return status, int(crc[0])

    def stream(self) -> io.RawIOBase:
        """Return a file object over the same descriptor; it moves the descriptor's position."""
        return io.FileIO(self.descriptor, closefd=False)

    @contextlib.contextmanager
    def local(self) -> Iterator[int]:
        """Yield the file's own descriptor."""
        yield self.descriptor

    # ------------------------------------------------------------ speed

    @staticmethod
    def prefetch(requests: npt.NDArray[Any]) -> None:
        """Have the kernel read ahead into the page cache."""
        engine.prefetch(requests)

    def expect_random_reads(self) -> None:
        """Turn off the kernel's readahead.

        With it, the kernel reads 128 KiB for a record of 60 KiB, and a record of 160 KiB in two steps, one after the
        other.
        """
        os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_RANDOM)

    def open_direct(self) -> tuple[int, int] | None:
        """See ``File`` and ``fffs_open_direct``."""
        if self._direct is None:
            align = ffi.new("uint32_t *")
            descriptor = lib.fffs_open_direct(self.descriptor, align)
            if descriptor < 0:
                return None
            self._direct = int(descriptor), int(align[0])
        return self._direct

    # ------------------------------------------------------------ identity

    def current_size(self) -> int:
        """Return the size from fstat. Raises ReadError."""
        with reading(self.name):
            return os.fstat(self.descriptor).st_size

    def stamp(self) -> Any:
        """Return size, modification time and inode as of opening."""
        return make_stamp(self.status, inode=has_inode_numbers(self.descriptor))

    def changed(self, stamp: Any) -> int:
        """Return 0 if size, modification time and inode equal the stamp, else -errno."""
        return int(lib.fffs_unchanged(self.descriptor, stamp))

    def is_replaced(self) -> bool:
        """See ``File``. False if there is no file of that name: a copy may be open on another machine."""
        try:
            now = os.stat(_from_here(self._folder, self.name))
        except OSError:
            return False
        return _key(now) != _key(self.status)

    def is_outdated(self) -> bool:
        """See ``File``. Also true after a change of the status alone: who overwrites a file can set its times back."""
        try:
            now = os.stat(_from_here(self._folder, self.name))
        except OSError:
            return False
        return (*_key(now), now.st_ctime_ns) != (*_key(self.status), self.status.st_ctime_ns)

    def is_named(self) -> bool:
        """See ``File``. True for any file of that name if inode numbers are unreliable."""
        try:
            now = os.stat(_from_here(self._folder, self.name))
        except OSError:
            return False
        return os.path.samestat(now, self.status) or not has_inode_numbers(self.descriptor)

    def open_beside(self, path: str) -> LocalFile | None:
        """Open the file at a path; None if there is none. A relative one begins where this file's name does."""
        return LocalFile.open(path, self._folder) if os.path.lexists(_from_here(self._folder, path)) else None


def _from_here(folder: str, path: str) -> str:
    """Return a path that leads from the current folder where a path in ``folder`` does.

    It is unchanged if that is the current folder: those above may be closed to this user, or their names too long.
    """
    return path if folder == current_folder() else os.path.join(folder, path)


def _key(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
