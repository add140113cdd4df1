"""pack_folder: a folder into one FFRecord file, losslessly, in bounded memory."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fffs import engine, packed_pickle, trailer
from fffs.atomic import AtomicFile
from fffs.engine import BLOCK, CHECK_CRC32
from fffs.errors import MetadataError, ReadError, SourceChangedError, UnsupportedError, UsageError, WriteError
from fffs.folders import close
from fffs.formats.ffrecord import SUFFIX, encode_header, header_size
from fffs.index import BlockChecksums
from fffs.jobs import Jobs, Progress, default_jobs
from fffs.native import ffi, lib
from fffs.scan import FileToPack, Output, Scan, SourceFolder, identity, open_source, scan_folder

log = logging.getLogger("fffs.pack")

PIECE = 16 * BLOCK  # of a file, between two looks at whether to go on


class PackSummary(NamedTuple):
    """What was packed."""

    files: int
    total_bytes: int


def pack_folder(
    dirname: str | bytes | os.PathLike[Any],
    fname: str | bytes | os.PathLike[Any],
    verbose: bool = False,
    *,
    jobs: int | None = None,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
) -> PackSummary:
    """Pack a folder into the file ``fname``, which appears complete or not at all.

    Kept: names, contents, modes, modification times (ns), symbolic links, hard links, empty folders. Not kept:
        owners, access times,
    extended attributes. FIFOs, sockets and devices are left out with a warning, and so is ``fname`` itself. The same
    folder gives the same bytes, with any number of jobs. ffrecord reads the result (symbolic links to files as files,
    others not).

    Args:
        dirname: the folder.
        fname: the file to write; its name must end in ``.ffr``.
        verbose: print a line when done.
        jobs: how many files are copied at once.
        progress: called with (bytes done, bytes in all) from time to time, from any thread.
        warn: called with a line for everything that is left out; the default logs it.

    Returns:
        How many files were packed (hard links count once), and their bytes.

    Raises:
        SourceNotFoundError, UsageError, ReadError: the folder, or something in it, cannot be read.
        SourceChangedError: a file changed while it was packed; the message names it.
        WriteError: the file cannot be written; an older one is as it was.

    """
    target = os.fsdecode(fname)
    if not target.endswith(SUFFIX):
        raise UsageError(f"{target}: the name of a packed folder must end in {SUFFIX}")
    try:
        output = Output(os.fsencode(target))
    except OSError as error:
        raise WriteError(error.errno or errno.EIO, target) from error
    # The folder is scanned before the output is created, which may lie inside it and would change its time.
    with open_source(os.fsencode(dirname)) as source:
        scan = scan_folder(source, output, warn or log.warning)
        with AtomicFile(target) as file:
            _Packer(scan, file, source, progress).run(jobs or default_jobs())
    if verbose:
        print(f"{target}: {len(scan.files)} files, {scan.total_bytes} bytes")
    return PackSummary(len(scan.files), scan.total_bytes)


class _Packer:
    """One packing: all offsets are known from the scan, so the files are copied in parallel, each to its place."""

    def __init__(self, scan: Scan, file: AtomicFile, source: SourceFolder, progress: Progress | None) -> None:
        self.scan, self.file, self.source = scan, file, source
        n = len(scan.files)
        sizes = np.fromiter((f.size for f in scan.files), np.int64, n)
        self.offsets = np.empty(n + 1, np.int64)  # the last one is the tree's
        self.offsets[0] = header_size(n + 1)
        np.cumsum(sizes, out=self.offsets[1:])
        self.offsets[1:] += self.offsets[0]
        self.checksums = np.zeros(n + 1, np.uint32)
        self.big = np.flatnonzero(sizes > BLOCK)
        counts = (sizes[self.big] + (BLOCK - 1)) // BLOCK
        self.first_blocks = np.concatenate([[0], np.cumsum(counts)]).astype(np.uint64)
        self.block_checksums = np.zeros(int(self.first_blocks[-1]), np.uint32)
        self.jobs = Jobs(scan.total_bytes, progress)

    def run(self, jobs: int) -> None:
        """Copy the files, append the tree, write the header, put the file in place."""
        try:
            tree = self.scan.builder.build(len(self.scan.files), self.source.shown(b""))
        except MetadataError as error:
            raise UnsupportedError(f"{self.source.shown(b'')}: cannot be packed: {error}") from error
        self.jobs.run(self._copy, range(len(self.scan.files)), jobs)
        blocks = BlockChecksums(self.big.astype(np.uint32), self.first_blocks, self.block_checksums)
        record = packed_pickle.encode(tree) + trailer.encode(tree, blocks)
        self.checksums[-1] = engine.crc32(record)
        self._write(record, int(self.offsets[-1]))
        self._write(encode_header(self.checksums, self.offsets), 0)
        self.file.commit()

    def _copy(self, k: int) -> None:
        file = self.scan.files[k]
        folder, name = os.path.split(file.path)
        try:
            # O_NOFOLLOW, O_NONBLOCK: what was a file may have become a link or a FIFO (or a socket: ENXIO).
            with self.source.ways.at(folder) as dir_fd:
                fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO):
                raise self._changed(file) from None
            raise ReadError(error.errno or errno.EIO, self.source.shown(file.path)) from error
        try:
            if identity(os.fstat(fd)) != file.identity:
                raise self._changed(file)
            self._copy_bytes(k, file, fd)
            if identity(os.fstat(fd)) != file.identity:
                raise self._changed(file)
        finally:
            close(fd)

    def _copy_bytes(self, k: int, file: FileToPack, fd: int) -> None:
        """Copy a file in pieces, so that an interrupt, or the failure of another job, does not wait for all of it."""
        crc, failed = ffi.new("uint32_t *"), ffi.new("int *")
        first = int(self.first_blocks[np.searchsorted(self.big, k)]) if file.size > BLOCK else None
        whole = 0
        for start in range(0, file.size, PIECE):
            length = min(PIECE, file.size - start)
            blocks: Any = ffi.NULL
            if first is not None:
                blocks = ffi.cast("uint32_t *", self.block_checksums.ctypes.data) + first + start // BLOCK
            at = int(self.offsets[k]) + start
            status = lib.fffs_copy(fd, start, self.file.fd, at, length, CHECK_CRC32, crc, blocks, failed)
            if status != 0:
                raise self._failure(-status, file, failed[0] == self.file.fd)
            whole = engine.crc32_combine(whole, crc[0], length) if start else crc[0]
            self.jobs.count(length)
        self.checksums[k] = whole

    def _failure(self, code: int, file: FileToPack, writing: bool) -> Exception:
        """The exception for a copy that ended with -code."""
        if code == errno.ENODATA:
            return self._changed(file)
        if code == errno.ENOMEM:
            return MemoryError("not enough memory to copy a file")
        return WriteError(code, self.file.path) if writing else ReadError(code, self.source.shown(file.path))

    def _write(self, data: bytes | npt.NDArray[Any], offset: int) -> None:
        view = memoryview(data)
        while view:
            try:
                put = os.pwrite(self.file.fd, view[: 64 * BLOCK], offset)
            except OSError as error:
                raise WriteError(error.errno or errno.EIO, self.file.path) from error
            if not put:
                raise WriteError(errno.EIO, self.file.path)
            view, offset = view[put:], offset + put

    def _changed(self, file: FileToPack) -> SourceChangedError:
        return SourceChangedError(
            f"{self.source.shown(file.path)}: changed while the folder was packed; pack it when nobody writes to it"
        )
