"""Ray: an executor for ``pack_folder`` and others; records as data sets, and back. Needs ``fffs[ray]``."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from fffs.base.importing import importing
from fffs.base.paths import PathLike
from fffs.cluster.engines import RayExecutor
from fffs.errors import UsageError

if TYPE_CHECKING:
    from fffs.engines.slices import Decode


def executor(address: str | None = None) -> Executor:
    """Return an executor whose functions run in Ray, as for ``fffs.pack_folder(…, executor=fffs.ray.executor())``.

    All nodes need fffs, and see source and target under the same paths. May be used from any thread.

    Args:
        address: of the cluster, if this process is not connected to one yet. None: ``ray.init`` decides.

    Raises:
        UsageError: Ray is not installed, or there is no cluster at the address.

    Examples:
        >>> fffs.pack_folder("photos", "packed", parts=2, executor=fffs.ray.executor())
        PackSummary(files=3, total_bytes=28)

    """
    return RayExecutor(address)


def read(
    source: PathLike | Sequence[PathLike],
    *,
    decode: Decode | None = None,
    check_data: bool = True,
    format: str | None = None,
    **options: Any,
) -> Any:
    """Return the files of a pack, or the records of any other source, as a ``ray.data.Dataset``.

    It has the columns ``path`` and ``bytes``. The latter is the memory of the batch that was read, without a copy.
    In a block, files come in the order of their bytes in the source; one with several names comes once. Ray passes
    blocks on as they end, unless ``preserve_order`` of ``ray.data.DataContext``'s ``execution_options`` is set. Bytes
    of a path that are not UTF-8 are shown as ``\\xNN``.

    Args:
        source: a file, a folder, a URL, or a list of them, as for ``fffs.open``. Records without names have the paths
            that a mount would show.
        decode: called with the bytes of each file; it returns the columns of its row. For example
            ``fffs.tfrecord.decode``.
        check_data: compare checksums.
        format: as for ``fffs.open``.
        options: for ``ray.data.read_datasource``, such as ``override_num_blocks`` and ``ray_remote_args``.

    Raises:
        UsageError, FormatError, SourceNotFoundError, ReadError: the source cannot be opened, or divided. In a task:
        SourceChangedError if the source was replaced meanwhile, ChecksumError, and others.

    Examples:
        >>> sorted(row["path"] for row in fffs.ray.read("photos.ffr").take_all())
        ['cat/1.jpg', 'cat/2.jpg', 'dog/1.jpg']

    """
    try:
        with importing:
            import ray.data

            from fffs.engines.ray_data import RecordDatasource
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("fffs.ray.read needs Ray: pip install 'fffs[ray]'", name=error.name) from error
    return ray.data.read_datasource(RecordDatasource(source, decode, check_data, format), **options)


def write_records(dataset: Any, target: PathLike, column: str = "bytes", **options: Any) -> int:
    """Write a column of a data set as records of FFRecord files, one file for each task that has rows.

    The tasks write the files beside the target, a folder that all nodes see under the same absolute path. It appears
    when all are written: ``NAME-00000-of-00020.ffr``, ...

    In a store, as with the target ``"s3://bucket/records"``, the files get their names one by one:
    ``records-00000000-5f0c2a91.ffr``, ... Opening the target is an error until all are there. Each attempt at a task
    must have the same rows.

    Args:
        dataset: a ``ray.data.Dataset``.
        target: the folder, or its URL (s3, gs or az), which must be missing or empty. Workers take the settings of the
            store from their own environment.
        column: of bytes, text, or arrays, whose memory is written.
        options: for ``Dataset.write_datasink``, such as ``ray_remote_args`` and ``concurrency``.

    Returns:
        The number of records.

    Raises:
        UsageError: the target exists, there are no rows, or Ray leaves out blocks that fail (``max_errored_blocks``).
        WriteError: something cannot be written, or another process writes this target. AccessError, ReadError: of a
        store. In a task, UsageError: there is no such column. Nothing is left then.

    Examples:
        >>> fffs.ray.write_records(fffs.ray.read("photos.ffr"), "records")
        3

    """
    return _written(dataset, target, column, "", options)


def write_packed(dataset: Any, target: PathLike, path: str = "path", column: str = "bytes", **options: Any) -> int:
    """Write rows of a data set as files of a packed folder, one pack for each task that has rows.

    As ``write_records``. The files have the mode 0644, and the time at which this function was called.

    Args:
        dataset: a ``ray.data.Dataset``.
        target: as for ``write_records``.
        path: the column of the paths from the folder on. Each path comes once; the names of all files are compared
            before the target appears, in about 100 bytes of memory each.
        column: of the contents, bytes or text.
        options: as for ``write_records``.

    Returns:
        The number of files.

    Raises:
        UsageError: also if a path cannot be that of a file, or comes twice. Otherwise as ``write_records``.

    Examples:
        >>> fffs.ray.write_packed(fffs.ray.read("photos.ffr"), "copy")
        3

    """
    return _written(dataset, target, column, path, options)


def _written(dataset: Any, target: PathLike, column: str, path: str, options: dict[str, Any]) -> int:
    """Write what both functions write. path: the column of the paths, or nothing for records."""
    with importing:
        from fffs.engines.ray_sink import RecordDatasink
        from fffs.engines.record_parts import RecordParts
    if dataset.context.max_errored_blocks:
        raise UsageError(
            "Ray would leave out rows without an error (max_errored_blocks is not 0): call materialize(), and set "
            "context.max_errored_blocks = 0 of its result"
        )
    with RecordParts.begin(target, packed=bool(path)) as parts:
        sink = RecordDatasink(parts, column, path)
        dataset.write_datasink(sink, **options)
        return parts.commit(sink.written)
