"""Packer: copies the files of a scanned folder into a packed folder, in parallel."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Final, NamedTuple

from fffs.base.jobs import Jobs, Progress
from fffs.errors import FffsError, ReadError, SourceChangedError
from fffs.files.atomic_output import AtomicOutput, NewOutput
from fffs.files.dirfd import close
from fffs.files.leases import open_waiting
from fffs.native import lib
from fffs.native.engine import BLOCK
from fffs.packing.pack_file import PIECE, PackFile
from fffs.packing.runs import RUNS, divide
from fffs.packing.scan import Scan
from fffs.packing.source_folder import SourceFolder, Unreadable

# Errors of opening and reading a file that was a regular one when the folder was scanned.
CHANGED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENODATA, errno.ESTALE)
ROUNDS: Final = 8  # how often files are copied anew because others changed meanwhile


class _Summary(NamedTuple):
    files: int
    total_bytes: int


class PackSummary(_Summary):
    """How many files were packed, and their bytes.

    ``unread``, ``changed``: how many inputs were left out because they could not be read, or changed.
    """

    unread: int = 0
    changed: int = 0

    def with_left_out(self, unread: int, changed: int) -> PackSummary:
        """Count inputs that were left out. Returns itself."""
        self.unread, self.changed = unread, changed
        return self


class _FilesFailed(Exception):  # noqa: N818 - no error: the others are copied again
    """Files could not be copied, and are left out. ``rest``: the others."""

    def __init__(self, rest: Scan) -> None:
        super().__init__()
        self.rest = rest


class Copied(NamedTuple):
    """A complete packed folder, which the caller commits. ``checksum``: that of its header."""

    file: AtomicOutput
    summary: PackSummary
    checksum: int


@contextlib.contextmanager
def copied(
    scan: Scan, source: SourceFolder, align: bool, new: NewOutput, jobs: int, progress: Progress | None
) -> Iterator[Copied]:
    """Yield a new file, which ``new`` makes, with the files of a scan, which nobody else refers to.

    If the source leaves out files that cannot be read, all are copied first, to find those; then the others again into
    another new file, so that the bytes are those of a folder without them.

    Raises:
        SourceChangedError, ReadError: a file changed or could not be read; or files kept changing.
        Also what ``new`` raises, and writing.

    """
    packer = Packer(scan, source, align)
    del scan  # see Packer.run
    for last in range(ROUNDS)[::-1]:
        with new() as file:
            try:
                checksum = packer.run(file, jobs, progress)
            except _FilesFailed as failed:
                if not last:
                    raise SourceChangedError(
                        f"{source.shown(b'')}: files changed in each of {ROUNDS} attempts; pack it when less changes it"
                    ) from None
                packer = Packer(failed.rest, source, align)
                continue
            yield Copied(file, packer.summary, checksum)
            return


class Packer:
    """Copies the files in parallel: the scan gives all sizes, so the offset of each file is known beforehand."""

    def __init__(self, scan: Scan, source: SourceFolder, align: bool) -> None:
        self.scan, self.source, self.align = scan, source, align
        self.summary = PackSummary(len(scan.sizes), scan.total_bytes)
        self.folders = scan.listing.parents[scan.entries]
        self.runs = divide(self.folders[1:] != self.folders[:-1], scan.sizes)
        self._failed: list[int] = []

    def run(self, file: AtomicOutput, jobs: int, progress: Progress | None) -> int:
        """Copy the files, append the tree, write the header. Returns the checksum of the header."""
        scan, pack = self.scan, PackFile(file, self.scan.sizes, self.align)
        self.pack, self.jobs = pack, Jobs(scan.total_bytes, progress, file.cancel)
        self.jobs.run(self._copy, range(len(self.runs) - 1), jobs, RUNS)
        if self._failed:
            raise _FilesFailed(scan.without(self._failed))
        tree = scan.tree
        del scan, self.scan, self.folders, self.runs  # before the tree is written, which takes memory, too
        return pack.finish(tree)

    def _copy(self, run: int) -> None:
        """Copy files of one folder whose records follow each other: several small ones, or a large one."""
        first, last = int(self.runs[run]), int(self.runs[run + 1])
        try:
            with self.source.ways.at(self.scan.listing.path(int(self.folders[first]))) as dir_fd:
                if self.scan.sizes[first] > BLOCK:
                    self._copy_large(first, dir_fd)
                    return
                self._copy_small(first, last, dir_fd)
        except FffsError:
            raise
        except OSError as error:
            for k in range(first, last):
                self._fail(k, error)
        self.jobs.count(int(self.scan.sizes[first:last].sum()))

    def _copy_small(self, first: int, last: int, dir_fd: int) -> None:
        while first < last:
            copied, number = self._copy_run(first, last, dir_fd)
            first += copied
            if number == errno.EAGAIN:
                number = self._copy_leased(first, dir_fd)
            if number:
                self._fail(first, OSError(number, os.strerror(number)))
            first += 1

    def _copy_leased(self, k: int, dir_fd: int) -> int:
        """Copy a small file on which a file server has a lease; it gets no other one while the file is open.

        Returns an errno, or 0.
        """
        try:
            fd = self._open(k, dir_fd)
        except OSError as error:
            return error.errno or errno.EIO
        try:
            return self._copy_run(k, k + 1, dir_fd)[1]
        finally:
            close(fd)

    def _copy_run(self, first: int, last: int, dir_fd: int) -> tuple[int, int]:
        return self.pack.copy_files(first, self.scan.entries[first:last], self.scan.listing, dir_fd)

    def _open(self, k: int, dir_fd: int) -> int:
        """Open the file that becomes record k. It may have been replaced by a link, a FIFO, or a socket: ENXIO."""
        return open_waiting(self.scan.listing.name(int(self.scan.entries[k])), os.O_NOFOLLOW, dir_fd)

    def _fail(self, k: int, error: OSError) -> None:
        """Leave out the file that would be record k, or raise the exception of its error."""
        failure = self._failure(k, error)
        if not self.source.can_leave_out(error):
            raise failure from error
        assert self.source.leave_out
        self._failed.append(k)
        self.source.leave_out(failure)

    def _copy_large(self, k: int, dir_fd: int) -> None:
        """Copy a file in pieces, so that an interrupt or the failure of another job takes effect between them."""
        entry = int(self.scan.entries[k])
        status = self.scan.listing.columns.statuses + entry
        fd = self._open(k, dir_fd)
        try:
            for start in range(0, int(self.scan.sizes[k]), PIECE):
                if not lib.fffs_is_same(fd, status):
                    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
                length = min(PIECE, int(self.scan.sizes[k]) - start)
                self.pack.copy(k, start, fd, start, length)
                self.jobs.count(length)
            failed = lib.fffs_ends_at(fd, int(self.scan.sizes[k]))
            if not lib.fffs_is_same(fd, status):
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            if failed:
                raise OSError(-failed, os.strerror(-failed))
        finally:
            close(fd)

    def _failure(self, k: int, error: OSError) -> Unreadable:
        """Return the exception for an error of the file that becomes record k."""
        shown = self.source.shown(self.scan.path(k))
        if error.errno in CHANGED:
            return SourceChangedError(
                f"{shown}: changed while the folder was packed; pack it when nothing writes to it"
            )
        if error.errno == errno.EOVERFLOW:  # see fffs_ends_at
            return ReadError(error.errno, shown, "it has more bytes than its size says; copy it, and pack the copy")
        return ReadError(error.errno, shown)
