"""Checksum sidecars: ``FILE.fffs-crc`` beside a file whose format has no checksums. Writing them, and using them.

Little-endian: magic, u64 number of records, u64 size of the file, u32 CRC-32 of where its records begin and end (two
int64 each); a u32 CRC-32 of each record; u32 CRC-32 of all that. See FORMATS.md.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from fffs.base.failures import reading, writing
from fffs.base.paths import PathLike
from fffs.errors import MetadataError, ReadError, TruncatedError, UsageError
from fffs.files.atomic import CHECKSUMS, AtomicFile
from fffs.files.dirfd import close
from fffs.files.local import SourceFile, open_source, open_with_status
from fffs.formats import bag
from fffs.formats.table import recogniser
from fffs.native import engine
from fffs.native.engine import CHECK_CRC32, CHECK_NONE
from fffs.records import index_cache
from fffs.records.index import RecordIndex

MAGIC: Final = b"fffsCRC1"
HEAD: Final = struct.Struct("<8sQQI")
CRC: Final = struct.Struct("<I")

BATCH_RECORDS = 4096
BATCH_BYTES = 256 << 20


def _fingerprint(index: RecordIndex) -> int:
    """What ties a sidecar to the file's own table of records."""
    crc = engine.crc32(index.starts.astype("<i8"))
    return engine.crc32(index.ends.astype("<i8"), crc)


def with_checksums(index: RecordIndex) -> RecordIndex:
    """The same index, with the checksums of the file's sidecar if it lacks checksums and there is one.

    Raises:
        MetadataError: the sidecar is damaged, or not of this file as it is now.
        ReadError: the operating system could not read it.

    """
    path = index.path + CHECKSUMS
    if index.check != CHECK_NONE or not os.path.lexists(path):
        return index
    fd, _ = open_source(path)
    try:
        checksums = _load(fd, path, index)
    finally:
        close(fd)
    return replace(index, checksums=checksums, check=CHECK_CRC32).validate()


def _load(fd: int, path: str, index: RecordIndex) -> npt.NDArray[np.uint32]:
    n = len(index)
    size = HEAD.size + 4 * n + CRC.size
    stale = f"{path}: not the checksums of {index.path} as it is now; make them anew (fffs verify --keep), or remove it"
    with reading(path):
        # The file's own number of records says how much there may be, not a number in here.
        if os.fstat(fd).st_size != size:
            raise MetadataError(stale)
        data = bytearray()
        while len(data) < size and (piece := os.pread(fd, size - len(data), len(data))):
            data += piece
    if len(data) != size or CRC.unpack(data[-CRC.size :])[0] != engine.crc32(data[: -CRC.size]):
        raise MetadataError(f"{path}: damaged; make it anew (fffs verify --keep), or remove it")
    if HEAD.unpack_from(data) != (MAGIC, n, index.file_size, _fingerprint(index)):
        raise MetadataError(stale)
    return np.frombuffer(data, "<u4", n, HEAD.size).astype(np.uint32)


def keep_checksums(path: PathLike, format: str | None = None) -> list[str]:
    """Write the sidecars of all files of a source whose formats have no checksums: what is in them now is right.

    A sidecar that fits its file stays, also when records are not what it says: ``fffs verify`` names them then.

    Args:
        path: a record file, a folder of them, or a granular data set.
        format: as in ``fffs.open``.

    Returns:
        The sidecars that were written.

    Raises:
        What opening the source raises; ReadError, TruncatedError: a record cannot be read; WriteError: a sidecar cannot
        be written.

    """
    written: list[str] = []
    recognise = recogniser(format)
    for name, layout in _files(os.fsdecode(path), may_be_data_set=format is None):
        fd, _, status = open_with_status(name)
        try:
            if layout:
                index = bag.load(fd, name, layout)[0]
            else:
                with index_cache.unused():
                    index = recognise(fd, name).load_index(fd, name, True)
            if index.check == CHECK_NONE and not _fits(index):
                written.append(_write(SourceFile(fd, index, status)))
        finally:
            close(fd)
    return written


def _files(path: str, *, may_be_data_set: bool) -> Iterator[tuple[str, str | None]]:
    """The record files of a source; of a data set its Bags, also those of its shards, and the layout they are in."""
    from fffs.granular import shards, spec
    from fffs.reader import expand_sources  # which reads with sidecars

    folders = shards.data_set_folders(path) if may_be_data_set else []
    for folder in folders:
        layout = shards.layout_of(folder, spec.load(folder))
        for name in sorted(os.listdir(folder)):
            if name.endswith(bag.SUFFIX):
                yield os.path.join(folder, name), layout
    if not folders:
        yield from ((name, None) for name in expand_sources(path))


def _fits(index: RecordIndex) -> bool:
    try:
        return with_checksums(index).check != CHECK_NONE
    except MetadataError:
        return False


def _write(source: SourceFile) -> str:
    """Compute and write the sidecar of an open file; its path.

    Raises:
        ReadError, TruncatedError: a record cannot be read.
        WriteError: the sidecar cannot be written.
        UsageError: the file has more than 2**32 records.

    """
    index = source.index
    checksums = np.concatenate([np.empty(0, np.uint32), *_compute(source)])
    head = HEAD.pack(MAGIC, len(index), index.file_size, _fingerprint(index))
    body = head + checksums.astype("<u4").tobytes()
    with AtomicFile(index.path + CHECKSUMS, source.fd) as target:
        with writing(target.path), open(target.fd, "wb", closefd=False) as file:
            file.write(body)
            file.write(CRC.pack(engine.crc32(body)))
        target.commit()
    return index.path + CHECKSUMS


def _compute(source: SourceFile) -> Any:
    """uint32 checksums, a batch of records at a time; nothing is kept of their bytes."""
    index = source.index
    if len(index) >= 2**32:
        raise UsageError(f"{index.path}: too many records for one file of checksums")
    lengths = index.ends - index.starts
    begin = 0
    while begin < len(index):
        sizes = np.cumsum(lengths[begin : begin + BATCH_RECORDS])
        end = begin + max(1, int(np.searchsorted(sizes, BATCH_BYTES)))
        requests = np.zeros(end - begin, engine.REQUEST)
        requests["offset"], requests["length"] = index.starts[begin:end], lengths[begin:end]
        requests["fd"], requests["check"] = source.fd, CHECK_CRC32
        engine.read_batch(requests)  # nothing is expected: what comes out is what is wanted
        for k in np.flatnonzero((requests["status"] != 0) & (requests["status"] != -errno.EBADMSG)).tolist():
            status = -int(requests["status"][k])
            if status == errno.ENODATA:
                raise TruncatedError(
                    f"{index.path}: record {begin + k} reaches past the end of the file; it was cut, copy it again",
                    path=index.path,
                    record=begin + k,
                    number=begin + k,
                )
            raise ReadError(status, index.path, f"record {begin + k}")
        yield requests["actual"].copy()
        begin = end
