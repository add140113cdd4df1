"""Lines: a toy format, whose records are lines of text. It shows what a new format needs: a module, and a row."""

from __future__ import annotations

import os

import numpy as np
from inside import CHECK_NONE, File, Format, FrameWriter, RecordIndex

from fffs.errors import MetadataError, UsageError

SUFFIX = ".lines"


def recognise(head: bytes, size: int, path: str) -> bool:
    """Recognise files by name, because any bytes can be lines."""
    return path.endswith(SUFFIX)


def load_index(file: File, check_data: bool = True) -> RecordIndex:
    """Raises MetadataError: the last line is incomplete."""
    data = np.empty(file.size, np.uint8)
    data = data[: file.read_at(0, data, "its lines")]
    ends = np.flatnonzero(data == ord("\n"))
    if len(data) and (not len(ends) or ends[-1] != len(data) - 1):
        raise MetadataError(f"{file.name}: its last line has no end; the file is truncated, copy it again")
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1] + 1])[: len(ends)]
    return RecordIndex(file.name, starts, ends, None, CHECK_NONE, file.size, format="Lines").validate()


class LinesWriter(FrameWriter):
    """Writes lines."""

    def _around(self, data: memoryview, record: int) -> tuple[bytes, bytes]:
        if b"\n" in bytes(data):
            raise UsageError(f"{self.fname}: a record has several lines")
        return b"", b"\n"

    def _load_index(self, file: File) -> RecordIndex:
        return load_index(file)


LINES = Format(
    "lines",
    "Lines",
    recognise,
    load_index,
    create=lambda path, n, layout: LinesWriter(path),
    is_part=lambda name: name.endswith(SUFFIX),
    is_target=lambda path: path.endswith(SUFFIX),
    parts_of=lambda folder, names: [os.path.join(folder, name) for name in sorted(names) if name.endswith(SUFFIX)],
    part_name=lambda stem, number, total: f"{stem}-{number:03}{SUFFIX}",
)
