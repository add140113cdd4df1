"""RecordDatasource: what ``fffs.ray.read`` reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from fffs.base.paths import PathLike
from fffs.engines.arrow import SCHEMA, table_of
from fffs.engines.slices import Decode, Slice, whole_of


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
        """Open the source to see what is in it. Arguments and errors are those of ``fffs.ray.read``."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._decode = decode
        self._whole = whole_of(source, check_data=check_data, format=format)

    def get_name(self) -> str:
        """Return the name that Ray shows."""
        return "fffs"

    def estimate_inmemory_data_size(self) -> int:
        """Return the bytes of all files."""
        return self._whole.size

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """Return so many tasks, as far as there are files. Each yields blocks of at most ``SLICE_BYTES``."""
        shares = self._whole.divided(count=max(parallelism, 1))
        return [self._task(share, per_task_row_limit) for share in shares]

    def _task(self, share: Slice, limit: int | None) -> ReadTask:
        decode = self._decode
        metadata = BlockMetadata(
            num_rows=len(share), size_bytes=share.size, input_files=share.source.names, exec_stats=None
        )

        def read() -> Iterable[pa.Table]:
            for part in share.divided():
                yield table_of(part.read(), decode)

        schema = SCHEMA if decode is None else None
        return ReadTask(read, metadata, schema=schema, per_task_row_limit=limit)
