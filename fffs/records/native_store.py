"""make_native_store: passes the indexes of source files to the C store as arrays."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from fffs.errors import ReadError
from fffs.files.file_systems import keeps_times
from fffs.native import engine, ffi, lib
from fffs.records.source_file import SourceFile


def make_native_store(files: Sequence[SourceFile]) -> tuple[Any, list[Any]]:
    """Return a C store over files, to be freed with ``fffs_store_free``, and the arrays that must outlive it.

    Raises:
        ReadError: a file's attributes cannot be read.
        MemoryError: memory is not sufficient.
        UsageError: the environment names an unknown backend.

    """
    engine.ready()  # C reads batches by itself from here on
    keep: list[Any] = []
    structs = ffi.new("fffs_file[]", max(len(files), 1))
    for k, source in enumerate(files):
        index, file = source.index, structs[k]
        arrays: dict[str, tuple[str, npt.NDArray[Any]]] = {
            "starts": ("int64_t *", index.starts),
            "ends": ("int64_t *", index.ends),
        }
        if index.checksums is not None:
            arrays["checksums"] = ("uint32_t *", index.checksums)
        if index.blocks is not None:
            arrays["big_records"] = ("uint32_t *", index.blocks.records)
            arrays["big_first_blocks"] = ("uint64_t *", index.blocks.first_blocks)
            arrays["block_checksums"] = ("uint32_t *", index.blocks.checksums)
            file.bigs = len(index.blocks.records)
        for name, (kind, array) in arrays.items():
            setattr(file, name, ffi.cast(kind, array.ctypes.data))
            keep.append(array)
        # A version of an object, which has no descriptor of the system, never changes.
        file.keeps_times = source.file.descriptor < 0 or keeps_times(source.file.descriptor)
        file.records, file.fd, file.check = len(index), source.file.descriptor, index.check
        file.stamp = source.stamp[0]
    native, failed = ffi.new("fffs_store **"), ffi.new("size_t *")
    status = lib.fffs_store_new(structs, len(files), native, failed)
    if status == -errno.ENOMEM:
        raise MemoryError("not enough memory for a record store")
    if status != 0:
        raise ReadError(-status, files[failed[0]].index.path)
    return native[0], keep
