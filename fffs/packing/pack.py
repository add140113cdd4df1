"""pack_folder: packs a folder into one FFRecord file, losslessly and in bounded memory."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from fffs.base.failures import writing
from fffs.base.jobs import Jobs, Progress, default_jobs
from fffs.base.paths import PathLike
from fffs.base.text import tell
from fffs.errors import FffsError, MetadataError, ReadError, SourceChangedError, UnsupportedError, UsageError
from fffs.files.atomic import AtomicFile
from fffs.files.dirfd import close
from fffs.files.targets import refuse_file
from fffs.formats.ffrecord import SUFFIX
from fffs.packing.pack_file import PIECE, PackFile
from fffs.packing.scan import ExcludedOutput, FileToPack, Scan, SourceFolder, open_source, scan_folder
from fffs.tree.builder import TreeBuilder
from fffs.tree.tree import Tree

log = logging.getLogger("fffs.pack")


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
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
) -> PackSummary:
    """Pack a folder into the file ``fname``, which appears complete or not at all.

    Kept: names, contents, modes, modification times (ns), symbolic links, hard links, empty folders. Not kept: owners,
    access times, extended attributes. FIFOs, sockets and devices are left out with a warning; ``fname`` itself is left
    out without one. The same folder gives the same bytes, with any number of jobs. ffrecord reads the result: it shows
    symbolic links to files as files, and no other symbolic links.

    Args:
        dirname: the folder.
        fname: the file to write; its name must end in ``.ffr``.
        verbose: print a line when done.
        jobs: how many files are copied at once.
        progress: called with (bytes done, total bytes) from time to time, from any thread.
        warn: called with one line for each thing that is left out or changed; the default logs it.

    Returns:
        How many files were packed (hard links count once), and their bytes.

    Raises:
        SourceNotFoundError, UsageError, ReadError: the folder, or something in it, cannot be read.
        SourceChangedError: a file changed while it was packed; the message names it.
        WriteError: the file cannot be written; an existing one is unchanged.

    """
    target = os.fsdecode(fname)
    with packed_folder(dirname, target, jobs, progress, warn or log.warning) as (file, summary):
        file.commit()
    if verbose:
        tell(f"{target}: {summary.files} files, {summary.total_bytes} bytes")
    return summary


@contextlib.contextmanager
def packed_folder(
    dirname: PathLike, target: str, jobs: int | None, progress: Progress | None, warn: Callable[[str], None]
) -> Iterator[tuple[AtomicFile, PackSummary]]:
    """Yield the complete packed file, which replaces ``target`` when the block commits it. As ``pack_folder``."""
    if not target.endswith(SUFFIX):
        raise UsageError(f"{target}: the name of a packed folder must end in {SUFFIX}")
    refuse_file(target)
    with writing(target):
        output = ExcludedOutput(os.fsencode(target))
    with contextlib.ExitStack() as stack:
        with open_source(os.fsencode(dirname)) as source:
            # Scan first: creating the output may change the modification time of a folder that is packed.
            scan = scan_folder(source, output, warn)
            file = stack.enter_context(AtomicFile(target))
            _Packer(scan, file, source, progress).run(jobs or default_jobs())
        yield file, PackSummary(len(scan.files), scan.total_bytes)


class _Packer:
    """Copies the files in parallel: the scan gives all sizes, so the offset of each file is known beforehand."""

    def __init__(self, scan: Scan, file: AtomicFile, source: SourceFolder, progress: Progress | None) -> None:
        self.scan, self.source = scan, source
        n = len(scan.files)
        self.pack = PackFile(file, np.fromiter((f.size for f in scan.files), np.int64, n))
        self.jobs = Jobs(scan.total_bytes, progress)

    def run(self, jobs: int) -> None:
        """Copy the files, append the tree, write the header."""
        tree = build_tree(self.scan.builder, len(self.scan.files), self.source.shown(b""))
        self.jobs.run(self._copy, range(len(self.scan.files)), jobs)
        self.pack.finish(tree)

    def _copy(self, k: int) -> None:
        file = self.scan.files[k]
        folder, name = os.path.split(file.path)
        try:
            # O_NOFOLLOW, O_NONBLOCK: the file may have been replaced by a link or a FIFO (or a socket: ENXIO).
            with self.source.ways.at(folder) as dir_fd:
                fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO):
                raise self._changed(file) from None
            raise ReadError(error.errno, self.source.shown(file.path)) from error
        try:
            if not file.is_same(os.fstat(fd)):
                raise self._changed(file)
            self._copy_bytes(k, file, fd)
            if not file.is_same(os.fstat(fd)):
                raise self._changed(file)
        finally:
            close(fd)

    def _copy_bytes(self, k: int, file: FileToPack, fd: int) -> None:
        """Copy a file in pieces, so that an interrupt or the failure of another job takes effect between them."""
        for start in range(0, file.size, PIECE):
            length = min(PIECE, file.size - start)
            try:
                self.pack.copy(k, start, fd, start, length)
            except FffsError:
                raise
            except OSError as error:
                if error.errno == errno.ENODATA:
                    raise self._changed(file) from None
                raise ReadError(error.errno, self.source.shown(file.path)) from error
            self.jobs.count(length)

    def _changed(self, file: FileToPack) -> SourceChangedError:
        return SourceChangedError(
            f"{self.source.shown(file.path)}: changed while the folder was packed; pack it when nothing writes to it"
        )


def build_tree(builder: TreeBuilder, files: int, shown: str) -> Tree:
    """Build the tree of what is packed, which has ``files`` records. Raises UnsupportedError if the names form none."""
    try:
        return builder.build(files, shown)
    except MetadataError as error:
        raise UnsupportedError(f"{shown}: cannot be packed: {error}") from error
