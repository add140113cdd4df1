"""SourceFile: an open file together with its index."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from fffs.base.withblock import Closing
from fffs.files.file import File
from fffs.records.index import RecordIndex


@dataclass(frozen=True)
class SourceFile(Closing):
    """An open file and its index, which was read after the file's status. Owns the file."""

    file: File
    index: RecordIndex

    @functools.cached_property
    def stamp(self) -> Any:
        """What the file must keep while it is read, if it has no checksums."""
        return self.file.stamp(self.index.least)

    def changed(self) -> int:
        """0 while the file is what it was when it was opened, to judge by its size and times; else a -errno."""
        return self.file.changed(self.stamp)

    def close(self) -> None:
        """Close the file."""
        self.file.close()
