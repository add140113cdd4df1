"""fffs.open: opens any source of records."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from fffs.base.importing import importing
from fffs.base.paths import PathLike
from fffs.formats.bag import COMPRESSED
from fffs.objects.locations import is_folder
from fffs.reader import FileReader

if TYPE_CHECKING:
    from fffs.granular import BagReader, DatasetReader, ShardedDatasetReader

    AnyReader = FileReader | BagReader | DatasetReader | ShardedDatasetReader


def open(  # called as fffs.open
    path: PathLike | list[Any] | tuple[Any, ...],
    *,
    check_data: bool = True,
    format: str | None = None,
    prefix: str | None = None,
    cache: PathLike | None = None,
    cache_size: str | int | None = None,
) -> AnyReader:
    """Open a record file, a folder of parts or shards, or a granular data set, in any format.

    All readers have ``n``, ``read(indices)`` (reads one batch, returns a list), ``read_one(index)`` and ``close``, and
    are context managers. They may be used from any thread and after fork, and can be pickled.

    Args:
        path: a file, a folder, or a list of files whose records are numbered consecutively.
        check_data: compare the checksums of records, if the format has them.
        format: "ffrecord", "tfrecord", "ofrecord" or "bag", for files that are not recognised by content and name.
        prefix: for a folder of OFRecord parts that are not called ``part-0``, ``part-1``, …: what their names have
            before the numbers.
        cache: a folder that keeps what is read of objects in stores, for all processes of this user; "off": nothing is
            kept; None: as FFFS_CACHE says.
        cache_size: the most bytes that it keeps, as 10**10, "20G" or "30%" (of the free space); None: as
            FFFS_CACHE_SIZE says, or half of the free space.

    Returns:
        ``FileReader`` for record files of all formats: records are 1-D uint8 arrays. ``fffs.granular.BagReader`` for a
        ``.bagz``: records are decompressed. ``fffs.granular.DatasetReader`` or ``ShardedDatasetReader`` for the folder
        of a data set: records are rows, dictionaries of decoded values.

    Raises:
        SourceNotFoundError, FormatError, MetadataError, ReadError, UsageError.

    Examples:
        >>> with fffs.open("train.tfrecord") as reader:
        ...     fffs.tfrecord.decode(reader.read_one(2))
        {'label': array([2])}

    """
    if isinstance(path, (list, tuple)) or format is not None or prefix is not None:
        return FileReader(path, check_data, format=format, prefix=prefix, cache=cache, cache_size=cache_size)
    name = os.fsdecode(path)
    if is_folder(name):
        with importing:
            from fffs.granular.shards import data_set_folders

        if folders := data_set_folders(name):
            with importing:
                from fffs.granular import DatasetReader, ShardedDatasetReader

            return (DatasetReader if folders == [name] else ShardedDatasetReader)(name, check_data=check_data)
    elif name.endswith(COMPRESSED):
        with importing:
            from fffs.granular import BagReader

        return BagReader(name, check_data=check_data)
    return FileReader(path, check_data, cache=cache, cache_size=cache_size)
