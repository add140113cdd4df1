"""Writes sidecars: files of checksums beside files whose formats have none. ``fffs.records.sidecar`` reads them."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from fffs.base.failures import writing
from fffs.base.numbers import divide
from fffs.base.paths import PathLike
from fffs.errors import MetadataError, ReadError, SourceChangedError, TruncatedError, UsageError
from fffs.files.atomic import AtomicFile, forget_checksums
from fffs.files.local import LocalFile
from fffs.files.pair import only_writer
from fffs.files.sidecar_names import CHECKSUMS, real_path
from fffs.formats import bag
from fffs.formats.sources import expand_sources
from fffs.formats.table import recogniser
from fffs.granular import shards, spec
from fffs.native import engine
from fffs.native.checksums import CHECK_CRC32, CHECK_NONE, crc32
from fffs.objects.names import is_remote, shown
from fffs.records import index_cache
from fffs.records.sidecar import CRC, encode_head, with_checksums
from fffs.records.source_file import SourceFile

BATCH_RECORDS = 4096
BATCH_BYTES = 256 << 20


def keep_checksums(path: PathLike, format: str | None = None) -> list[str]:
    """Write the sidecars of all files of a source whose formats have no checksums. The current content counts as right.

    A sidecar that fits its file is kept, even if records differ from its checksums; ``fffs verify`` names those.

    Args:
        path: a record file, a folder of them, or a granular data set.
        format: as in ``fffs.open``.

    Returns:
        The paths of the sidecars that were written.

    Raises:
        ReadError, TruncatedError: a record cannot be read.
        UsageError: it is not local.
        WriteError: a sidecar cannot be written. Also, whatever opening the source raises.

    """
    if is_remote(os.fsdecode(path)):
        raise UsageError(
            f"{shown(os.fsdecode(path))}: checksums are kept beside local files only; copy the object first"
        )
    written: list[str] = []
    recognise = recogniser(format)
    for name, layout in _files(os.fsdecode(path), may_be_data_set=format is None):
        with LocalFile.open(name) as file:
            if layout:
                index = bag.load(file, layout)[0]
            else:
                with index_cache.unused():
                    index = recognise(file).load_index(file, True)
            source = SourceFile(file, index)
            if index.check == CHECK_NONE and not _fits(source):
                written.append(_write(source))
    return written


def suspects(files: Iterable[SourceFile], bad: Iterable[str]) -> list[str]:
    """Return the sidecars from which all records differ, as when another program replaced the file.

    bad: the path of the file of each bad record.
    """
    counts = Counter(bad)
    paths = [file.index.path for file in files if 0 < len(file.index) <= counts[file.index.path]]
    return [name for name in (real_path(path) + CHECKSUMS for path in paths) if os.path.exists(name)]


def _files(path: str, *, may_be_data_set: bool) -> Iterator[tuple[str, str | None]]:
    """Yield (path, None) of each record file, or (path, layout) of each Bag of a data set and its shards."""
    folders = shards.data_set_folders(path) if may_be_data_set else []
    for folder in folders:
        keys = spec.load(folder)
        layout = shards.layout_of(folder, keys)
        # Not all files of that suffix: a table may be called limits.KEY.bag.
        for key in keys if layout == "v3" else [*keys, spec.REFS]:
            yield os.path.join(folder, key + bag.SUFFIX), layout
    if not folders:
        yield from ((name, None) for name in expand_sources(path))


def _fits(source: SourceFile) -> bool:
    try:
        return with_checksums(source.file, source.index).check != CHECK_NONE
    except MetadataError:
        return False


def _write(source: SourceFile) -> str:
    """Compute and write the sidecar of an open file. Returns the path of the sidecar.

    Raises:
        ReadError, TruncatedError: a record cannot be read. SourceChangedError: the file changed.
        WriteError: the sidecar cannot be written.
        UsageError: the file has 2**32 records or more.

    """
    index, path = source.index, real_path(source.index.path)
    checksums = np.concatenate([np.empty(0, np.uint32), *_compute(source)])
    body = encode_head(index) + checksums.astype("<u4").tobytes()
    with AtomicFile(path + CHECKSUMS, source.file.descriptor) as target:
        with writing(target.path), open(target.fd, "wb", closefd=False) as file:
            file.write(body)
            file.write(CRC.pack(crc32(body)))
        target.sync()
        with only_writer(path):  # which writers of a Bag hold to replace it
            if source.changed() or not source.file.is_named():
                raise SourceChangedError(f"{index.path}: changed while its checksums were computed; try again later")
            target.commit()
    if not source.file.is_named():  # a writer that replaced the file meanwhile may have found no sidecar to remove
        with writing(path + CHECKSUMS):
            forget_checksums(os.fsencode(path))
        raise SourceChangedError(f"{index.path}: was replaced while its checksums were computed; try again later")
    return path + CHECKSUMS


def _compute(source: SourceFile) -> Any:
    """Yield arrays of uint32 checksums, one per batch of records. The bytes of the records are not kept."""
    index = source.index
    if len(index) >= 2**32:
        raise UsageError(f"{index.path}: has 2**32 records or more, too many for a file of checksums")
    lengths = index.ends - index.starts
    for begin, end in divide(lengths, BATCH_BYTES, BATCH_RECORDS):
        requests = np.zeros(end - begin, engine.REQUEST)
        requests["offset"], requests["length"] = index.starts[begin:end], lengths[begin:end]
        requests["fd"], requests["check"] = source.file.descriptor, CHECK_CRC32
        source.file.read_batch(requests)  # computes the checksums; no expected ones are given, so EBADMSG is ignored
        for k in np.flatnonzero((requests["status"] != 0) & (requests["status"] != -errno.EBADMSG)).tolist():
            status = -int(requests["status"][k])
            if status == errno.ENODATA:
                raise TruncatedError(
                    f"{index.path}: record {begin + k} reaches past the end of the file; copy the file again",
                    path=index.path,
                    record=begin + k,
                    number=begin + k,
                )
            raise ReadError(status, index.path, f"record {begin + k}")
        yield requests["actual"].copy()
