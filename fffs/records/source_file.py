"""SourceFile: an open file together with its index."""

from __future__ import annotations

from collections.abc import Sequence
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


def disks_of(files: Sequence[SourceFile]) -> list[int]:
    """Return a number for each file, from 0, the same for files on one disk: a file system, by its device number.

    A mount lets a limited number of threads wait for each disk: one that does not answer holds none that others need.
    """
    disks: dict[object, int] = {}
    return [disks.setdefault(file.file.device or file.file, len(disks)) for file in files]
