"""Records as bags of Dask, and back. Needs ``pip install 'fffs[dask]'``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

try:
    import dask.bag
    from dask.base import compute
    from dask.delayed import delayed
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("fffs.dask needs Dask: pip install 'fffs[dask]'", name=error.name) from error

from fffs.base.paths import PathLike
from fffs.engines.record_parts import RecordParts, WrittenPart
from fffs.engines.slices import SLICE_BYTES, Slice, rows_of, slices_of


def read(
    source: PathLike | Sequence[PathLike],
    *,
    decode: Callable[[bytes], Any] | None = None,
    partition_bytes: int = SLICE_BYTES,
    npartitions: int | None = None,
    check_data: bool = True,
    format: str | None = None,
) -> Any:
    """Return the files of a pack, or the records of any other source, as a ``dask.bag.Bag`` of (path, bytes).

    A partition is read in one verified batch by the worker that needs it. The workers must see the source under the
    same absolute name. Files come in the order of their bytes in the source; one with several names comes once.

    Args:
        source: a file, a folder, a URL, or a list of them, as for ``fffs.open``. Records without names have the paths
            that a mount would show.
        decode: called with the bytes of each file; the bag then has its results. For example ``fffs.tfrecord.decode``.
        partition_bytes: the bytes of a partition, unless a single file is larger.
        npartitions: instead of that, how many partitions there are.
        check_data: compare checksums.
        format: as for ``fffs.open``.

    Raises:
        UsageError, FormatError, SourceNotFoundError, ReadError: the source cannot be opened, or divided. When a
        partition is computed: SourceChangedError if the source was replaced meanwhile, ChecksumError, and others.

    Examples:
        >>> bag = fffs.dask.read("photos.ffr")
        >>> bag.map(lambda row: (row[0], len(row[1]))).compute(scheduler="sync")
        [('cat/1.jpg', 9), ('cat/2.jpg', 10), ('dog/1.jpg', 9)]

    """
    slices = slices_of(source, count=npartitions, slice_bytes=partition_bytes, check_data=check_data, format=format)
    bags: Any = dask.bag  # without type hints
    if not slices:
        return bags.from_sequence([], npartitions=1)
    return bags.from_delayed([delayed(_rows, pure=False)(part, decode) for part in slices])


def _rows(part: Slice, decode: Callable[[bytes], Any] | None) -> list[Any]:
    return rows_of(part.read(), decode)


def write_records(bag: Any, target: PathLike, **options: Any) -> int:
    """Write the items of a bag as records of FFRecord files, one file for each partition that has items.

    The workers write the files beside the target, a folder that all of them see under the same absolute path. It
    appears when all are written: ``NAME-00000-of-00020.ffr``, ..., in the order of the partitions. A partition whose
    worker dies is written again.

    In a store, as with the target ``"s3://bucket/records"``, the files get their names one by one:
    ``records-00000000-5f0c2a91.ffr``, ... Opening the target is an error until all are there. Each attempt at a
    partition must have the same items.

    Args:
        bag: of bytes, arrays or other contiguous buffers.
        target: the folder, or its URL (s3, gs or az), which must be missing or empty. Workers take the settings of the
            store from their own environment.
        options: for ``dask.compute``, such as ``scheduler``.

    Returns:
        The number of records.

    Raises:
        UsageError: the target exists, or the bag is empty. WriteError: something cannot be written, or another process
        writes this target. AccessError, ReadError: of a store. Also what computing the bag raises. Nothing is left
        then.

    Examples:
        >>> bag = fffs.dask.read("photos.ffr", npartitions=2)
        >>> fffs.dask.write_records(bag.map(lambda row: row[1]), "records", scheduler="sync")
        3

    """
    return _written(bag, target, False, options)


def write_packed(bag: Any, target: PathLike, **options: Any) -> int:
    """Write the items of a bag as files of a packed folder, one pack for each partition that has items.

    As ``write_records``. The files have the mode 0644, and the time at which this function was called.

    Args:
        bag: of (path, bytes): a path from the folder on, as text or bytes, and a contiguous buffer. Each path comes
            once; the names of all files are compared before the target appears, in about 100 bytes of memory each.
        target: as for ``write_records``.
        options: as for ``write_records``.

    Returns:
        The number of files.

    Raises:
        UsageError: also if a path cannot be that of a file, or comes twice. Otherwise as ``write_records``.

    Examples:
        >>> bag = fffs.dask.read("photos.ffr", npartitions=2)
        >>> fffs.dask.write_packed(bag, "copy", scheduler="sync")
        3

    """
    return _written(bag, target, True, options)


def _written(bag: Any, target: PathLike, packed: bool, options: dict[str, Any]) -> int:
    with RecordParts.begin(target, packed) as parts:
        tasks = [delayed(_write, pure=False)(parts, k, items) for k, items in enumerate(bag.to_delayed())]
        results: Any = compute(*tasks, **options)  # type: ignore[no-untyped-call]
        return parts.commit(results)


def _write(parts: RecordParts, number: int, items: Any) -> WrittenPart:
    return parts.write(number, list(items))
