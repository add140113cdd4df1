"""Writes the EROFS image of a tree: names, attributes, and where in the packed files the contents are."""

from __future__ import annotations

import errno
import os
import stat

import numpy as np
import numpy.typing as npt

from fffs.base.numbers import unique
from fffs.layouts.view import TreeView
from fffs.mount.options import MountOptions
from fffs.mount.system.erofs import CannotError
from fffs.native import ffi, lib
from fffs.packing.pack_file import checksums_of_zeros
from fffs.records.joined_index import JoinedIndex


def write_image(fd: int, source: TreeView, options: MountOptions) -> None:
    """Write the image of a packed folder, or of a union, to an empty file. Its device k + 1 is file k of the source.

    Raises:
        CannotError: the contents are not where the kernel can read them, or the image cannot be written.

    """
    files = source.store.files
    bits = min(file.index.alignment for file in files)
    index = source.store.index
    _refuse_tails(source, index, 1 << bits)
    firsts = np.array([index.first_record(k) for k in range(len(files))], np.int64)
    sizes = np.array([file.index.file_size for file in files], np.int64)
    image = ffi.new("fffs_erofs *")
    image.tree = source.tree.native
    image.starts, image.ends = _column(index.starts), _column(index.ends)
    image.firsts, image.sizes, image.devices = _column(firsts), _column(sizes), len(files)
    image.block_bits, image.umask, image.fd = bits, options.umask, fd
    # The kernel shows the mount to all users. Those without rights in its root cannot look inside.
    image.root_umask = 0 if options.allow_other else 0o077
    image.uid = os.getuid() if options.uid is None else options.uid
    image.gid = os.getgid() if options.gid is None else options.gid
    status = lib.fffs_erofs_write(image)
    if status == -errno.ENOMEM:
        raise MemoryError("not enough memory for the image of the tree")
    if status == -errno.EINVAL:
        raise CannotError(
            f"{files[0].index.path}: a file does not begin at a multiple of {1 << bits} bytes; pack it again"
        )
    if status:
        raise CannotError(
            f"{files[0].index.path}: cannot write the image of its names: {os.strerror(-status)}; "
            "TMPDIR chooses another folder for it"
        )


def _column(array: npt.NDArray[np.int64]) -> object:
    return ffi.cast("int64_t *", array.ctypes.data)


def _refuse_tails(source: TreeView, index: JoinedIndex, block: int) -> None:
    """Raise CannotError unless zeros follow each file up to the end of its last block, which mmap(2) shows."""
    tree = source.tree
    records = unique(tree.ref[tree.kinds == stat.S_IFREG]).astype(np.int64)
    ends = index.ends[records]
    records = records[ends % block != 0] + 1
    lengths = index.ends[records] - index.starts[records]
    zeros = checksums_of_zeros()
    # The padding before a long file is longer than necessary.
    good = (lengths >= -index.starts[records] % block) & (lengths < len(zeros))
    good &= index.checksums[records] == zeros[np.where(good, lengths, 0)]
    if not good.all():
        file, row = index.locate(int(records[np.argmin(good)]))
        raise CannotError(f"{file.index.path}: record {row} is not the padding that it must be; pack the folder again")
