"""pack_folder: packs a folder into one FFRecord file, losslessly, in memory for the names but not for the contents."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

from fffs.base.failures import writing
from fffs.base.jobs import Jobs, Progress, default_jobs
from fffs.base.paths import PathLike
from fffs.base.text import tell
from fffs.errors import FffsError, ReadError, SourceChangedError, UsageError
from fffs.files.atomic_output import AtomicOutput
from fffs.files.dirfd import close
from fffs.files.targets import refuse_file
from fffs.formats.ffrecord import SUFFIX
from fffs.native import lib
from fffs.native.engine import BLOCK
from fffs.objects.names import is_url
from fffs.objects.new_object import new_output
from fffs.packing.contents import pack_contents
from fffs.packing.object_folder import ObjectFolder
from fffs.packing.pack_file import PIECE, PackFile
from fffs.packing.protect import commit, refuse_verity
from fffs.packing.runs import RUNS, divide
from fffs.packing.scan import ExcludedOutput, Scan, scan_folder
from fffs.packing.source_folder import SourceFolder, open_source

log = logging.getLogger("fffs.pack")

# Errors of opening and reading a file that was a regular one when the folder was scanned.
CHANGED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENODATA, errno.ESTALE)


class PackSummary(NamedTuple):
    """How many files were packed, and their bytes."""

    files: int
    total_bytes: int


def pack_folder(
    dirname: PathLike,
    fname: PathLike,
    verbose: bool = False,
    *,
    jobs: int | None = None,
    align: bool = False,
    verity: bool = False,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
) -> PackSummary:
    """Pack a folder into the file or object ``fname``, which appears complete or not at all.

    Kept: names, contents, modes, modification times (ns), symbolic links, hard links, empty folders. Not kept: owners,
    access times, extended attributes. FIFOs, sockets and devices are left out with a warning; ``fname`` itself is left
    out without one. The same folder gives the same bytes, with any number of jobs. ffrecord reads the result: it shows
    symbolic links to files as files, and no other symbolic links.

    Args:
        dirname: the folder, or the URL of one, which ends with a slash: its objects become files with the mode 0644.
        fname: the file to write, or the URL of an object; its name must end in ``.ffr``.
        verbose: print a line when done.
        jobs: how many files are copied at once.
        align: let each file begin where ``-o kernel`` of a mount needs it: at a multiple of 512 bytes, or of 4096 from
            64 KiB on. Records of zeros fill the gaps, so records have other numbers than without; names lead to the
            right ones everywhere.
        verity: put the file under fs-verity, compare it with its checksums, and keep its digest in ``fname.fsverity``.
        progress: called with (bytes done, total bytes) from time to time, from any thread.
        warn: called with one line for each thing that is left out or changed; the default logs it.

    Returns:
        How many files were packed (hard links count once), and their bytes.

    Raises:
        SourceNotFoundError, UsageError, ReadError: the folder, or something in it, cannot be read.
        UsageError: also if ``verity`` is True, and the file system or the kernel has no fs-verity.
        RecordError: with ``verity``, the disk does not return what was written.
        SourceChangedError: a file changed while it was packed; the message names it.
        WriteError: the file cannot be written; an existing one is unchanged.

    """
    target = os.fsdecode(fname)
    if verity:
        refuse_verity(target)
    with packed_folder(dirname, target, jobs, progress, warn or log.warning, align) as (file, summary):
        commit(file, verity, progress)
    if verbose:
        tell(f"{target}: {summary.files} files, {summary.total_bytes} bytes")
    return summary


@contextlib.contextmanager
def packed_folder(
    dirname: PathLike,
    target: str,
    jobs: int | None,
    progress: Progress | None,
    warn: Callable[[str], None],
    align: bool = False,
) -> Iterator[tuple[AtomicOutput, PackSummary]]:
    """Yield the complete packed file, which replaces ``target`` when the block commits it. As ``pack_folder``."""
    if not target.endswith(SUFFIX):
        raise UsageError(f"{target}: the name of a packed folder must end in {SUFFIX}")
    if is_url(os.fsdecode(dirname)):
        with _packed_objects(os.fsdecode(dirname), target, jobs, progress, warn, align) as packed:
            yield packed
        return
    output = None
    if not is_url(target):
        refuse_file(target)
        with writing(target):
            output = ExcludedOutput(os.fsencode(target))
    with contextlib.ExitStack() as stack:
        with open_source(os.fsencode(dirname)) as source:
            # Scan first: creating the output may change the modification time of a folder that is packed.
            packer = _Packer(scan_folder(source, output, warn), source, align)
            file = stack.enter_context(new_output(target))
            summary = packer.run(file, jobs or default_jobs(), progress)
        yield file, summary


@contextlib.contextmanager
def _packed_objects(
    url: str, target: str, jobs: int | None, progress: Progress | None, warn: Callable[[str], None], align: bool
) -> Iterator[tuple[AtomicOutput, PackSummary]]:
    """Yield the complete file of the objects in a folder of a store, as ``packed_folder``."""
    with ObjectFolder(url, warn, output=target) as folder:
        if not is_url(target):
            refuse_file(target)
        contents = folder.scan()
        with new_output(target) as file:
            pack_contents(folder, contents, file, jobs or default_jobs(), progress, align)
            yield file, PackSummary(len(contents.sizes), contents.total_bytes)


class _Packer:
    """Copies the files in parallel: the scan gives all sizes, so the offset of each file is known beforehand."""

    def __init__(self, scan: Scan, source: SourceFolder, align: bool) -> None:
        self.scan, self.source, self.align = scan, source, align
        self.folders = scan.listing.parents[scan.entries]
        self.runs = divide(self.folders[1:] != self.folders[:-1], scan.sizes)

    def run(self, file: AtomicOutput, jobs: int, progress: Progress | None) -> PackSummary:
        """Copy the files, append the tree, write the header."""
        scan, pack = self.scan, PackFile(file, self.scan.sizes, self.align)
        self.pack, self.jobs = pack, Jobs(scan.total_bytes, progress, file.cancel)
        self.jobs.run(self._copy, range(len(self.runs) - 1), jobs, RUNS)
        tree, summary = scan.tree, PackSummary(len(scan.sizes), scan.total_bytes)
        del scan, self.scan, self.folders, self.runs  # before the tree is written, which takes memory, too
        pack.finish(tree)
        return summary

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
