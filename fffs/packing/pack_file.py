"""PackFile: writes a packed folder, whose records come in any order, from files or from memory."""

from __future__ import annotations

import errno
import itertools
import os
import stat
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fffs.errors import WriteError
from fffs.files.atomic_output import AtomicOutput
from fffs.files.file import UInt8Array
from fffs.files.pwrite import write_at
from fffs.formats.ffrecord import encode_header, header_size
from fffs.native import ffi, lib
from fffs.native.checksums import CHECK_CRC32, crc32, crc32_combine
from fffs.native.engine import BLOCK
from fffs.packing.listing import Listing, UInt32Array
from fffs.records.index import BlockChecksums, Int64Array
from fffs.tree import packed_pickle, trailer
from fffs.tree.tree import Tree

PORTION = 64 * BLOCK  # bytes written from memory between two checks for an interrupt
PAGE = 1 << max(trailer.ALIGNMENTS)
TREE_BYTES = 128  # bytes of the tree for each file, about
LONG = 64 << 10  # bytes of a file that begins at a page: at 3 % more space at most, on average
PIECE = 16 * BLOCK  # bytes of a record copied between two checks for an interrupt or a failed job


def record_of(k: Any, alignment: int) -> Any:
    """Return the number of the record of file k, which may be an array."""
    return 2 * k + 1 if alignment else k


def numbered(tree: Tree, alignment: int) -> Tree:
    """Return a tree whose files refer to records, from one whose files refer to numbers of files."""
    if not alignment:
        return tree
    return replace(tree, ref=np.where(tree.kinds == stat.S_IFREG, record_of(tree.ref, alignment), tree.ref))


def checksums_of_zeros() -> npt.NDArray[np.uint32]:
    """Return the CRC-32 of 0, 1, … zero bytes, for all lengths of padding."""
    return np.array([crc32(bytes(k)) for k in range(PAGE)], np.uint32)


class PackFile:
    """Writes a packed folder. All record sizes are known from the start, so several threads may write at once.

    A record is written by one thread, in pieces from its beginning to its end; the size of each piece but the last is a
    multiple of ``BLOCK``. When all are written, ``finish`` adds the tree; then the caller commits the file.

    In an aligned pack, files begin at multiples of 512 bytes, or of 4096 from 2 TiB on, because block numbers of EROFS
    have 32 bits. Long files always begin at multiples of 4096: the kernel copies a page from one page and not from two,
    and first reads of 112 KiB take 15 % less. Records have no gaps, so a padding record of zeros precedes each file,
    and the tree. Nothing names it.
    """

    def __init__(self, file: AtomicOutput, sizes: Int64Array, align: bool = False) -> None:
        """file: empty; the caller closes it. sizes: int64[n], the sizes of the files."""
        self.file, self.sizes = file, sizes
        n = len(sizes)
        self.alignment = self._choose_alignment() if align else 0
        self.offsets = np.empty(n + 1, np.int64)  # of the files, and of the tree
        self.offsets[0] = header_size(2 * n + 2 if align else n + 1)
        self.offsets[1:] = sizes
        self.offsets += -self.offsets % (1 << self.alignment)
        np.cumsum(self.offsets, out=self.offsets)
        if align:
            self._align_to_pages(np.flatnonzero(sizes >= LONG))
        file.expect_size(int(self.offsets[-1]) + n * TREE_BYTES)
        self._checksums = np.zeros(n + 1, np.uint32)
        self._big = np.flatnonzero(sizes > BLOCK)
        counts = (sizes[self._big] + (BLOCK - 1)) // BLOCK
        self._first_blocks = np.concatenate([[0], np.cumsum(counts)]).astype(np.uint64)
        self._block_checksums = np.zeros(int(self._first_blocks[-1]), np.uint32)

    def copy(self, k: int, at: int, fd: int, start: int, length: int) -> None:
        """Copy ``length`` bytes from byte ``start`` of a file to byte ``at`` of record k.

        Raises:
            WriteError: the piece could not be written.
            OSError: the piece could not be read; ENODATA: that file ends too early.
            MemoryError: not enough memory.

        """
        crc, failed = ffi.new("uint32_t *"), ffi.new("int *")
        first = self._first_block(k, at)
        blocks: Any = ffi.NULL
        if first is not None:
            blocks = ffi.cast("uint32_t *", self._block_checksums.ctypes.data) + first
        place = int(self.offsets[k]) + at
        status = lib.fffs_copy(fd, start, self.file.fd, place, length, CHECK_CRC32, crc, blocks, failed)
        if status == -errno.ENOMEM:
            raise MemoryError("not enough memory to copy a file")
        if status != 0:
            if failed[0] == self.file.fd:
                raise WriteError(-status, self.file.path)
            raise OSError(-status, os.strerror(-status))
        self._count(k, at, int(crc[0]), length)
        self._wrote(k, at, length)

    def copy_files(self, k: int, entries: UInt32Array, listing: Listing, dir_fd: int) -> tuple[int, int]:
        """Copy files of the open folder, none larger than ``BLOCK``, to record k and the following ones.

        Returns:
            How many were copied completely, and then the error of the next, as errno; 0 if all were.

        Raises:
            WriteError: they could not be written. MemoryError: not enough memory.

        """
        read, failed = ffi.new("uint64_t *"), ffi.new("int *")
        status = lib.fffs_copy_files(
            listing.columns,
            dir_fd,
            ffi.cast("uint32_t *", entries.ctypes.data),
            len(entries),
            self.file.fd,
            ffi.cast("int64_t *", self.offsets.ctypes.data) + k,
            ffi.cast("uint32_t *", self._checksums.ctypes.data) + k,
            read,
            failed,
        )
        if status == -errno.ENOMEM:
            raise MemoryError("not enough memory to copy files")
        if status != 0 and failed[0] == self.file.fd:
            raise WriteError(-status, self.file.path)
        copied = int(read[0])
        if copied:
            self.file.wrote(int(self.offsets[k]), int(self.offsets[k + copied] - self.offsets[k]))
        return copied, -status

    def put_files(self, records: UInt32Array, starts: Int64Array, data: UInt8Array) -> None:
        """Write whole files, none larger than ``BLOCK``, of which records[i] begins at starts[i] in ``data``. Those
        that are neighbours in the file should follow each other.

        Raises:
            WriteError: they could not be written. MemoryError: not enough memory.

        """
        status = lib.fffs_put_files(
            ffi.cast("uint8_t *", data.ctypes.data),
            ffi.cast("int64_t *", starts.ctypes.data),
            ffi.cast("uint32_t *", records.ctypes.data),
            len(records),
            self.file.fd,
            ffi.cast("int64_t *", self.offsets.ctypes.data),
            ffi.cast("int64_t *", self.sizes.ctypes.data),
            ffi.cast("uint32_t *", self._checksums.ctypes.data),
        )
        if status == -errno.ENOMEM:
            raise MemoryError("not enough memory to write files")
        if status != 0:
            raise WriteError(-status, self.file.path)
        apart = np.flatnonzero(np.diff(records) != 1) + 1
        for run in np.split(records, apart):
            if len(run):
                begin = int(self.offsets[run[0]])
                self.file.wrote(begin, int(self.offsets[int(run[-1]) + 1]) - begin)

    def put(self, k: int, at: int, data: Any) -> None:
        """Write a piece from memory to byte ``at`` of record k. Raises WriteError."""
        view = memoryview(data)
        self._write(view, int(self.offsets[k]) + at)
        self._wrote(k, at, len(view))
        first = self._first_block(k, at)
        if first is None:
            self._count(k, at, crc32(view), len(view))
            return
        for begin in range(0, len(view), BLOCK):
            block = view[begin : begin + BLOCK]
            crc = self._block_checksums[first + begin // BLOCK] = crc32(block)
            self._count(k, at + begin, int(crc), len(block))

    def _first_block(self, k: int, at: int) -> int | None:
        """Return the number of the block at byte ``at`` of record k, or None if the record has no block checksums."""
        if self.sizes[k] <= BLOCK:
            return None
        return int(self._first_blocks[np.searchsorted(self._big, k)]) + at // BLOCK

    def _count(self, k: int, at: int, crc: int, length: int) -> None:
        self._checksums[k] = crc32_combine(int(self._checksums[k]), crc, length) if at else crc

    def finish(self, tree: Tree) -> int:
        """Append the tree and write the header. Returns its checksum: of the checksums and places of all records.

        Raises WriteError.
        """
        tree = numbered(tree, self.alignment)
        big = record_of(self._big, self.alignment)
        blocks = BlockChecksums(big.astype(np.uint32), self._first_blocks, self._block_checksums)
        at = int(self.offsets[-1])
        for part in itertools.chain([packed_pickle.encode(tree)], trailer.encode(tree, blocks, self.alignment)):
            self._checksums[-1] = crc32(part, int(self._checksums[-1]))
            self._write(part, at)
            self.file.wrote(at, len(part))
            at += len(part)
        header = encode_header(*self._records())
        self._write(header, 0)
        self.file.wrote(0, int(self.offsets[0]))
        return int.from_bytes(header[:4], "little")

    def _choose_alignment(self) -> int:
        _, small, large = trailer.ALIGNMENTS
        end = int(self.sizes.sum()) + len(self.sizes) * ((1 << small) + 24) + int((self.sizes >= LONG).sum()) * PAGE
        return small if end < (2**32 - 1) << small else large

    def _align_to_pages(self, files: npt.NDArray[np.intp]) -> None:
        """Move these files, and all that follows each, to the next multiple of a page."""
        # From one of them to the next is a number of pages, so it does not matter where the first one begins.
        gaps = np.diff(self.offsets[files], prepend=0)
        moved = np.zeros(len(self.offsets), np.int64)
        moved[files] = -gaps % PAGE
        self.offsets += np.cumsum(moved)

    def _records(self) -> tuple[npt.NDArray[np.uint32], Int64Array]:
        """Return the checksums and offsets of all records."""
        if not self.alignment:
            return self._checksums, self.offsets
        n = len(self.offsets)
        offsets, checksums = np.empty(2 * n, np.int64), np.empty(2 * n, np.uint32)
        offsets[0], offsets[2::2], offsets[1::2] = header_size(2 * n), self.offsets[:-1] + self.sizes, self.offsets
        checksums[::2] = checksums_of_zeros()[offsets[1::2] - offsets[::2]]
        checksums[1::2] = self._checksums
        return checksums, offsets

    def _write(self, data: bytes | memoryview | UInt8Array, offset: int) -> None:
        view = memoryview(data)
        for begin in range(0, len(view), PORTION):
            write_at(self.file, [view[begin : begin + PORTION]], offset + begin)

    def _wrote(self, k: int, at: int, length: int) -> None:
        """Report a piece of record k, with the padding behind it if it is the last."""
        begin, end = int(self.offsets[k]) + at, int(self.offsets[k]) + at + length
        if at + length == self.sizes[k]:
            end = int(self.offsets[k + 1])
        self.file.wrote(begin, end - begin)
