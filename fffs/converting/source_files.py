"""Sources: the files that a conversion reads. They must not change before it ends, and must not be replaced by it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from fffs.base.failures import reading
from fffs.base.paths import is_same_file
from fffs.converting import kinds
from fffs.converting.foreign.imports import import_named
from fffs.errors import FffsError, SourceChangedError, UsageError
from fffs.files.dirfd import close
from fffs.files.file import File
from fffs.files.file_systems import has_inode_numbers
from fffs.files.sidecar_names import CHECKSUMS, real_path
from fffs.files.stamps import is_unchanged, make_stamp
from fffs.formats.bag import SUFFIX
from fffs.formats.sources import expand_sources
from fffs.formats.table import FORMATS, format_named
from fffs.granular import spec as specs
from fffs.granular.shards import data_set_folders, find_shards
from fffs.objects.fsspec_url import is_fsspec_url
from fffs.objects.locations import is_folder, open_file
from fffs.objects.names import is_remote, is_url, parse_url


def record_files(kind: str, path: str, prefix: str | None) -> list[str]:
    """Return the record files that a source stands for, in order. prefix: as for ``expand_sources``, whose errors it
    raises.
    """
    expand = None if is_fsspec_url(path) else format_named(kind).expand
    return expand(path) if expand and prefix is None else expand_sources(path, prefix)


class Sources:
    """The files that are read, with their sidecars, as they were when this object was made, before any was opened.

    ``records``: the record files, in order, or the files of a format of another library. The files of a folder are not
    included: packing checks them itself.
    """

    def __init__(self, kind: str, path: str, prefix: str | None = None) -> None:
        """prefix: of the names of parts in a folder, as for ``expand_sources``.

        Raises SourceNotFoundError, FormatError, UsageError, ReadError: the source is incomplete or unreadable.

        """
        self.records: list[str] = []
        self._folders: Sequence[str] = ()
        self._prefix = prefix
        self._state: Callable[[File], object] | None = None
        inside = [path] if not is_fsspec_url(path) and is_folder(path) else []
        self._set = path if kinds.is_records(kind) and inside else None
        files: Iterable[str] = ()
        if kinds.is_records(kind):
            files = self.records = record_files(kind, path, prefix)
        elif kind in kinds.ARCHIVES:
            files = [path]
        elif row := import_named(kind):
            files = self.records = row.expand(path)
            self._folders = inside
            self._state = row.state
        elif kind == kinds.GRANULAR:
            self._folders, files = _data_set(path)
        self._objects = list(filter(is_url, files))
        self._was: dict[str, Any] = {}  # name -> stamp
        for name in _with_sidecars(name for name in files if not is_remote(name)):  # an open object does not change
            with contextlib.suppress(OSError):  # opening a missing file reports it
                self._was[name] = _stamp(name)
        self._states = self._read_states()

    def refuse_changed(self) -> None:
        """Raise SourceChangedError if a source changed, or ReadError if it cannot be checked. Called before the result
        is put in place: if the format has no checksums, the result could mix old and new data.

        Two writes within one tick of a file system's clock may look like one. Names, links and modes may change.
        """
        for name, was in self._was.items():
            with reading(name), contextlib.suppress(FileNotFoundError, NotADirectoryError):  # gone is changed
                fd = os.open(name, os.O_PATH | os.O_CLOEXEC)
                try:
                    if is_unchanged(fd, was):
                        continue
                finally:
                    close(fd)
            raise _changed(name)
        for name, state in self._read_states().items():
            if self._states.get(name) != state:
                raise _changed(name)

    def _read_states(self) -> dict[str, object]:
        """Return what tells of changes that have no time of modification, by name. Raises ReadError."""
        found: dict[str, object] = {}
        if self._state is None:
            return found
        for name in self.records:
            if name in self._was:
                with open_file(name) as file:
                    found[name] = self._state(file)
        return found

    def refuse_inside(self, target: str) -> None:
        """Raise UsageError if the target would lie in the folder of a source data set, or of a format of another
        library, where any file may be part, or become a part of the set of record files in a folder: its records would
        be there twice.
        """
        if (
            self._set
            and _is_same(os.path.dirname(target) or ".", self._set.rstrip("/") or "/")
            and _is_part(self._set, target, self._prefix)
        ):
            self.refuse(target)
            raise UsageError(f"{target}: would become a part of the source, {self._set}; name another folder")
        for place in _folders_above(target) if self._folders else ():
            for folder in self._folders:
                if _is_same(place, folder.rstrip("/") or "/"):
                    raise UsageError(f"{target}: is in the source, {folder}; name a file or folder outside of it")

    def refuse(self, name: str) -> None:
        """Raise UsageError if a file that would be replaced or removed is a source, under this or another name."""
        if any(_is_same(name, source) for source in (self._objects if is_url(name) else self._was)):
            raise UsageError(f"{name}: is the source itself, or a part of it")


def _changed(name: str) -> SourceChangedError:
    return SourceChangedError(f"{name}: changed while it was converted; convert it when nothing writes to it")


def _is_part(folder: str, path: str, prefix: str | None) -> bool:
    """Return whether the folder would stand for a file of this name, perhaps besides others."""
    name = os.path.basename(path)
    if prefix is not None:
        return name.startswith(prefix) and name.removeprefix(prefix).isdecimal()
    try:
        return any(form.parts_of(folder, [name]) for form in FORMATS)
    except FffsError:  # it is one part of a set
        return True


def _stamp(name: str) -> Any:
    """Return the stamp of a file. Raises OSError."""
    fd = os.open(name, os.O_PATH | os.O_CLOEXEC)
    try:
        return make_stamp(os.fstat(fd), inode=has_inode_numbers(fd))
    finally:
        close(fd)


def _folders_above(path: str) -> Iterator[str]:
    """Yield the folders that a file or object would be in, the innermost first."""
    place, below = os.path.dirname(path), path
    if not is_url(path):
        place = os.path.realpath(place or ".")
    while place != below:
        yield place
        place, below = os.path.dirname(place), place


def _is_same(path: str, other: str) -> bool:
    """Return whether two paths lead to one file, also by a link or another mount, or two URLs to one object."""
    if is_url(path) or is_url(other):
        return is_url(path) and is_url(other) and parse_url(path) == parse_url(other)
    return is_same_file(path, other)


def _data_set(path: str) -> tuple[list[str], list[str]]:
    """Return the folders of a data set, and the files in them that are read."""
    folders = data_set_folders(path) or find_shards(path)
    names = [specs.NAME, *(key + SUFFIX for key in (specs.REFS, *specs.load_common(folders)))]
    return [path, *folders], [os.path.join(folder, name) for folder in folders for name in names]


def _with_sidecars(files: Iterable[str]) -> Iterator[str]:
    for name in files:
        yield name
        yield real_path(name) + CHECKSUMS
        for form in FORMATS:
            yield from form.sidecars(name)
