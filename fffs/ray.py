"""Records as data sets of Ray. Needs ``pip install 'fffs[ray]'``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

try:
    import pyarrow as pa
    import ray.data
    from ray.data.block import BlockMetadata
    from ray.data.datasource import Datasource, ReadTask
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("fffs.ray needs Ray: pip install 'fffs[ray]'", name=error.name) from error

from fffs.base.paths import PathLike
from fffs.engines.arrow import SCHEMA, table_of
from fffs.engines.slices import SLICE_BYTES, Slice, slices_of

Decode = Callable[[bytes], dict[str, Any]]


class RecordDatasource(Datasource):
    """The files of a pack, or the records of any other source, for ``ray.data.read_datasource``.

    Not thread-safe. Tasks open the source by its absolute name, which must lead to it on all nodes.
    """

    def __init__(
        self,
        source: PathLike | Sequence[PathLike],
        decode: Decode | None = None,
        check_data: bool = True,
        format: str | None = None,
    ) -> None:
        """Open the source to see what is in it. Arguments and errors are those of ``read``."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._decode = decode
        self._slices = slices_of(source, check_data=check_data, format=format)
        self._arguments: dict[str, Any] = {"check_data": check_data, "format": format}
        self._source = source

    def get_name(self) -> str:
        """Return the name that Ray shows."""
        return "fffs"

    def estimate_inmemory_data_size(self) -> int:
        """Return the bytes of all files."""
        return sum(part.size for part in self._slices)

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """Return so many tasks, as far as there are files. Each yields blocks of at most ``SLICE_BYTES``."""
        shares = slices_of(self._source, count=max(parallelism, 1), **self._arguments) if self._slices else []
        return [self._task(share, per_task_row_limit) for share in shares]

    def _task(self, share: Slice, limit: int | None) -> ReadTask:
        decode = self._decode
        metadata = BlockMetadata(
            num_rows=len(share), size_bytes=share.size, input_files=share.source.names, exec_stats=None
        )

        def read() -> Iterable[pa.Table]:
            for part in share.divided(SLICE_BYTES):
                yield table_of(part.read(), decode)

        schema = SCHEMA if decode is None else None
        return ReadTask(read, metadata, schema=schema, per_task_row_limit=limit)


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
    Files come in the order of their bytes in the source; one with several names comes once. Bytes of a path that are
    not UTF-8 are shown as ``\\xNN``.

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

    """
    return ray.data.read_datasource(RecordDatasource(source, decode, check_data, format), **options)
