"""RecordDatasink: what ``fffs.ray.write_records`` and ``write_packed`` write to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ray.data.block import BlockAccessor
from ray.data.datasource import Datasink

from fffs.engines.record_parts import RecordParts, WrittenPart
from fffs.errors import UsageError


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
        """Write the blocks of a task, whose memory belongs to Ray. Raises UsageError: there is no such column."""
        records: list[Any] = []
        for block in blocks:
            table = BlockAccessor.for_block(block).to_arrow()
            for column in filter(None, (self._column, self._path)):
                if column not in table.column_names:
                    raise UsageError(f"there is no column {column!r}, but {', '.join(table.column_names)}")
            contents = [value.as_buffer() for value in table.column(self._column)]
            records += zip(table.column(self._path).to_pylist(), contents, strict=True) if self._path else contents
        return self._parts.write(ctx.task_idx, records)

    def on_write_complete(self, write_result: Any) -> None:
        """Note what the tasks wrote."""
        self.written = list(write_result.write_returns)
