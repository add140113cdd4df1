"""SourceFile: an open file together with its index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fffs.base.withblock import Closing
from fffs.files.file import File
from fffs.records.index import RecordIndex


@dataclass(frozen=True)
class SourceFile(Closing):
    """An open file and its index, which was loaded after the file's status. Owns the file.

    ``check``: stores compare records with their checksums, if there are any.
    """

    file: File
    index: RecordIndex
    check: bool = True

    @property
    def stamp(self) -> Any:
        """The stamp of the file, which must not change if it has no checksums."""
        # Not functools.cached_property: before Python 3.12 it has a lock, which a child of fork may find locked.
        if (stamp := self.__dict__.get("_stamp")) is None:
            stamp = self.__dict__.setdefault("_stamp", self.file.stamp())
        return stamp

    def changed(self) -> int:
        """Return 0 if size and modification time are those of opening, else -errno."""
        return self.file.changed(self.stamp)

    def close(self) -> None:
        """Close the file."""
        self.file.close()
