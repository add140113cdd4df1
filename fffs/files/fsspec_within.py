"""FsspecWithin: a file in a copy of another file, for ``zip://x::simplecache::URL``."""

from __future__ import annotations

from collections.abc import Sequence

from fffs.files.fsspec_chains import Level, within
from fffs.files.fsspec_copy import FsspecCopy
from fffs.files.fsspec_file import FsspecFile


class FsspecWithin(FsspecFile):
    """A file in a copy. It stays what it is when the file is replaced that the copy is of. Owns the copy."""

    def __init__(self, outer: Sequence[Level], copy: FsspecCopy, path: str, name: str, secrets: Sequence[str]) -> None:
        """outer, path: as for ``within``. Closes the copy on errors. Raises as ``FsspecFile``."""
        self._archive = copy
        try:
            super().__init__(within(outer, lambda: copy, path, name), name, secrets)
        except BaseException:
            self.close()
            raise

    def _replaced(self) -> int:
        """0: nothing that is read changes."""
        return 0

    def is_outdated(self) -> bool:
        """See ``File``: whether the file was replaced that the copy is of."""
        return self._archive.is_outdated()

    def close(self) -> None:
        """Close the copy, too."""
        super().close()
        self._archive.close()


class FsspecCopyWithin(FsspecWithin, FsspecCopy):
    """A copy of a file in a copy, for ``simplecache::zip://x::simplecache::URL``: ``x`` may be compressed."""
