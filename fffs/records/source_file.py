"""SourceFile: an open file together with its index."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import Any

from fffs.files.stamps import make_stamp
from fffs.records.index import RecordIndex


@dataclass(frozen=True)
class SourceFile:
    """An open file, its index, and its status before the index was read. Whoever takes it over closes ``fd``."""

    fd: int
    index: RecordIndex
    status: os.stat_result

    @functools.cached_property
    def stamp(self) -> Any:
        """What it must keep while it is read, if it has no checksums."""
        return make_stamp(self.status, self.index.least)
