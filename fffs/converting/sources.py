"""Sources: the files that a conversion reads: they must stay as they are until it ends, and are not to be replaced."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fffs.base.failures import reading
from fffs.converting import kinds
from fffs.errors import SourceChangedError, UsageError
from fffs.files.atomic import CHECKSUMS
from fffs.files.dirfd import close
from fffs.files.stamps import is_unchanged, make_stamp
from fffs.formats.bag import SUFFIX
from fffs.formats.sources import expand_sources
from fffs.formats.table import FORMATS, format_named


class Sources:
    """What is read, with all that belongs to it, as it was when this was made: before anything is opened.

    ``records``: the record files, in order. A folder that is packed is none of this: packing compares its files.
    """

    def __init__(self, kind: str, path: str) -> None:
        """Raises SourceNotFoundError, FormatError, UsageError, ReadError: not all of it is there."""
        self.records: list[str] = []
        self._folders: Sequence[str] = ()
        files: Iterable[str] = ()
        if kinds.is_records(kind):
            files = self.records = (format_named(kind).expand or expand_sources)(path)
        elif kind in kinds.ARCHIVES:
            files = [path]
        elif kind == kinds.GRANULAR:
            self._folders, files = _data_set(path)
        self._was: dict[str, Any] = {}  # name -> stamp
        for name in _with_sidecars(files):
            with contextlib.suppress(OSError):  # what must be there is missed by who opens it
                self._was[name] = make_stamp(os.stat(name))

    def refuse_changed(self) -> None:
        """Before the result is put in place. Formats without checksums would be a mixture of what was and what is.

        Two writes within one tick of the clock of a file system may look like one. Another name, link or mode is no
        change. Raises SourceChangedError; ReadError: it cannot be seen.
        """
        for name, was in self._was.items():
            with reading(name), contextlib.suppress(FileNotFoundError, NotADirectoryError):  # gone is changed
                fd = os.open(name, os.O_PATH | os.O_CLOEXEC)
                try:
                    if is_unchanged(fd, was):
                        continue
                finally:
                    close(fd)
            raise SourceChangedError(f"{name}: changed while it was converted; convert it when nobody writes to it")

    def refuse_inside(self, target: str) -> None:
        """Raise UsageError for what would lie in the folder of a data set, where each name means something."""
        place = os.path.realpath(os.path.dirname(target) or ".")
        while True:
            for folder in self._folders:
                if _is_same(place, folder):
                    raise UsageError(f"{target}: is in the source, {folder}; name a file or folder outside of it")
            place, below = os.path.dirname(place), place
            if place == below:
                return

    def refuse(self, name: str) -> None:
        """Raise UsageError for a file that is read, by whatever name, and would be replaced or removed."""
        if any(_is_same(name, source) for source in self._was):
            raise UsageError(f"{name}: is the source itself, or a part of it")


def _is_same(path: str, other: str) -> bool:
    """Also by another name: a link, or another mount."""
    try:
        return os.path.samefile(path, other)
    except OSError:
        return False


def _data_set(path: str) -> tuple[list[str], list[str]]:
    """The folders of a data set, and the files in them that are read."""
    from fffs.granular import spec as specs  # imported for a data set at most, like all of granular
    from fffs.granular.shards import data_set_folders, find_shards

    folders = data_set_folders(path) or find_shards(path)
    names = [specs.NAME, *(key + SUFFIX for key in (specs.REFS, *specs.load_common(folders)))]
    return [path, *folders], [os.path.join(folder, name) for folder in folders for name in names]


def _with_sidecars(files: Iterable[str]) -> Iterator[str]:
    for name in files:
        yield name
        yield name + CHECKSUMS
        for form in FORMATS:
            yield from form.sidecars(name)
