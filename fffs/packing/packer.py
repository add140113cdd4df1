"""Packer: copies the files of a scanned folder into a packed folder, in parallel."""

from __future__ import annotations

import errno
import os
from typing import NamedTuple

from fffs.base.jobs import Jobs, Progress
from fffs.errors import FffsError, ReadError, SourceChangedError
from fffs.files.atomic_output import AtomicOutput
from fffs.files.dirfd import close
from fffs.native import lib
from fffs.native.engine import BLOCK
from fffs.packing.pack_file import PIECE, PackFile
from fffs.packing.runs import RUNS, divide
from fffs.packing.scan import Scan
from fffs.packing.source_folder import SourceFolder

# Errors of opening and reading a file that was a regular one when the folder was scanned.
CHANGED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENODATA, errno.ESTALE)


class PackSummary(NamedTuple):
    """How many files were packed, and their bytes."""

    files: int
    total_bytes: int


class Packer:
    """Copies the files in parallel: the scan gives all sizes, so the offset of each file is known beforehand."""

    def __init__(self, scan: Scan, source: SourceFolder, align: bool) -> None:
        self.scan, self.source, self.align = scan, source, align
        self.summary = PackSummary(len(scan.sizes), scan.total_bytes)
        self.folders = scan.listing.parents[scan.entries]
        self.runs = divide(self.folders[1:] != self.folders[:-1], scan.sizes)

    def run(self, file: AtomicOutput, jobs: int, progress: Progress | None) -> int:
        """Copy the files, append the tree, write the header. Returns the checksum of the header."""
        scan, pack = self.scan, PackFile(file, self.scan.sizes, self.align)
        self.pack, self.jobs = pack, Jobs(scan.total_bytes, progress, file.cancel)
        self.jobs.run(self._copy, range(len(self.runs) - 1), jobs, RUNS)
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
                failed, number = self.pack.copy_files(first, self.scan.entries[first:last], self.scan.listing, dir_fd)
        except FffsError:
            raise
        except OSError as error:
            raise self._failure(first, error) from error
        if number:
            raise self._failure(first + failed, OSError(number, os.strerror(number)))
        self.jobs.count(int(self.scan.sizes[first:last].sum()))

    def _copy_large(self, k: int, dir_fd: int) -> None:
        """Copy a file in pieces, so that an interrupt or the failure of another job takes effect between them."""
        entry = int(self.scan.entries[k])
        status = self.scan.listing.columns.statuses + entry
        # O_NOFOLLOW, O_NONBLOCK: the file may have been replaced by a link or a FIFO (or a socket: ENXIO).
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(self.scan.listing.name(entry), flags, dir_fd=dir_fd)
        try:
            for start in range(0, int(self.scan.sizes[k]), PIECE):
                if not lib.fffs_is_same(fd, status):
                    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
                length = min(PIECE, int(self.scan.sizes[k]) - start)
                self.pack.copy(k, start, fd, start, length)
                self.jobs.count(length)
            if not lib.fffs_is_same(fd, status):
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        finally:
            close(fd)

    def _failure(self, k: int, error: OSError) -> Exception:
        """Return the exception for an error of the file that becomes record k."""
        shown = self.source.shown(self.scan.path(k))
        if error.errno in CHANGED:
            return SourceChangedError(
                f"{shown}: changed while the folder was packed; pack it when nothing writes to it"
            )
        return ReadError(error.errno, shown)
