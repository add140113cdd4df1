"""DumpTask: writes some items of a data set as one record file of a set."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from fffs.base.jobs import Progress
from fffs.cluster.part_task import PartResult, PartTask
from fffs.errors import SourceChangedError
from fffs.files.atomic_output import NewOutput
from fffs.formats.ffrecord import header_size
from fffs.packing.dump import Items
from fffs.packing.named_items import load_items
from fffs.packing.whole import has_header, is_whole_file
from fffs.writer import FileWriter

_OFTEN = 1000  # items after which progress is told


@dataclass(frozen=True)
class DumpTask(PartTask):
    """Writes the items from ``start`` on, and before ``stop``. ``dataset``: its name. ``items``: how many it has."""

    start: int
    stop: int
    dataset: str
    items: int

    def to_fields(self) -> dict[str, Any]:
        """See ``PartTask``."""
        return {"start": self.start, "stop": self.stop, "total_bytes": self.total_bytes}

    @staticmethod
    def from_fields(fields: dict[str, Any]) -> dict[str, Any]:
        """See ``PartTask``."""
        return {name: int(fields[name]) for name in ("start", "stop", "total_bytes")}

    @property
    def shown(self) -> str:
        """The input, for messages."""
        return f"items {self.start} to {self.stop} of {self.dataset}"

    def _write(self, new: NewOutput, jobs: int | None, progress: Progress | None) -> PartResult:
        items = load_items(self.dataset)
        if len(items) != self.items:
            raise SourceChangedError(
                f"{self.dataset}: has {len(items)} items, and had {self.items} when the plan was made; make a new plan"
            )
        count = self.stop - self.start
        with new() as file, FileWriter(file, count) as writer:
            self._write_items(items, writer, progress)
            writer.finish()
            size = os.fstat(file.fd).st_size
            checksum = writer.header_checksum
        data = size - header_size(count)
        return PartResult(self.number, self.path, size, checksum, records=count, total_bytes=data)

    def _write_items(self, items: Items, writer: FileWriter, progress: Progress | None) -> None:
        for i in range(self.start, self.stop):
            writer.write_one(items[i])
            if progress and not i % _OFTEN:
                share = (i - self.start) / (self.stop - self.start)
                progress(int(self.total_bytes * share), self.total_bytes)

    def is_of(self, path: str, result: PartResult) -> bool:
        """See ``PartTask``. Items may differ from one attempt to the next, as those with random augmentations do."""
        return has_header(path, result)

    def _is_whole(self, path: str, result: PartResult) -> bool:
        return is_whole_file(path, result)
