"""RecordDatasink: what ``fffs.ray.write_records`` and ``write_packed`` write to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import pyarrow as pa
from ray.data.block import BlockAccessor
from ray.data.datasource import Datasink

from fffs.engines.record_parts import RecordParts, WrittenPart
from fffs.errors import UsageError

_BYTES: Final[tuple[Any, ...]] = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
)


class RecordDatasink(Datasink[WrittenPart]):
    """Writes a column as records: each task a part. Who makes it commits what is in ``written`` at the end."""

    def __init__(self, parts: RecordParts, column: str, path: str = "") -> None:
        """path: the column of the paths, if the parts are packed folders."""
        self._parts, self._column, self._path = parts, column, path
        self.written: list[WrittenPart] = []

    def get_name(self) -> str:
        """Return the name that Ray shows."""
        return "fffs"

    def write(self, blocks: Iterable[Any], ctx: Any) -> WrittenPart:
        """Write the blocks of a task, whose memory belongs to Ray. Raises UsageError: it has no such column."""
        records: list[Any] = []
        for block in blocks:
            table = BlockAccessor.for_block(block).to_arrow()
            if not table.num_rows:  # as after a filter: such a block need not have the columns of the others
                continue
            for column in filter(None, (self._column, self._path)):
                if column not in table.column_names:
                    raise UsageError(f"there is no column {column!r}, but {', '.join(table.column_names)}")
            contents = self._records_in(table.column(self._column))
            records += zip(table.column(self._path).to_pylist(), contents, strict=True) if self._path else contents
        return self._parts.write(ctx.task_idx, records)

    def _records_in(self, column: pa.ChunkedArray) -> list[Any]:
        """Return the bytes, texts or arrays of a column as buffers."""
        kind = column.type
        if any(is_kind(kind) for is_kind in _BYTES):
            return [value.as_buffer() for value in column]
        found = [value.as_py() for value in column]  # tensors are an extension of Ray
        if not all(isinstance(value, np.ndarray) for value in found):
            raise UsageError(f"the column {self._column!r} has {kind}, but records are bytes, text or arrays")
        return found

    def on_write_complete(self, write_result: Any) -> None:
        """Note what the tasks wrote."""
        self.written = list(write_result.write_returns)
