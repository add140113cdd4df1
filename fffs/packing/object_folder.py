"""ObjectFolder: the objects in a folder of a store, as the files of a folder that is packed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import numpy as np

from fffs.base.jobs import Jobs
from fffs.base.numbers import divide
from fffs.base.withblock import Closing
from fffs.errors import SourceChangedError, SourceNotFoundError, UsageError
from fffs.files.file import UInt8Array
from fffs.native import engine
from fffs.native.engine import BLOCK
from fffs.objects.client import ListedObject, list_entries, sign_all
from fffs.objects.names import ObjectName, parse_url, require_object
from fffs.objects.remote import RemoteFile
from fffs.packing.contents import Work
from fffs.packing.names import Contents, Names
from fffs.tree.tree import UInt32Array

MODE: Final = 0o644
_TOGETHER: Final = 16 << 20
"""Bytes of objects that are fetched together, at least one object; and of a large object."""
_OBJECTS: Final = 512
"""Objects that are fetched together. 64 requests are sent at a time (FFFS_CONNECTIONS)."""
_RANGE: Final = 8 << 20  # bytes of a request, at most
_VALID: Final = 3600  # seconds


def parse_folder(url: str) -> ObjectName:
    """Return the parts of the URL of a folder. Raises UsageError for other URLs."""
    folder = parse_url(url)
    if not folder.is_folder and not folder.is_web:  # which cannot be listed
        raise UsageError(f"{folder.name}: a folder of a store ends with a slash; write {folder.name}/")
    return folder


def key_prefix(folder: ObjectName) -> str:
    """Return what the keys of all objects in a folder begin with."""
    return f"{folder.key.rstrip('/')}/" if folder.key else ""


def list_folder(folder: ObjectName) -> Iterator[tuple[str, ListedObject]]:
    """Yield the path of each object from the folder on, and the object, in the order of the store.

    Raises:
        UsageError: a key cannot be a path. AccessError, ReadError, SourceNotFoundError: as ``list_entries``.

    """
    above = len(key_prefix(folder))
    for entry in list_entries(folder):
        require_object(parse_url(f"{folder.scheme}://{folder.bucket}/{entry.key}"))  # refuses odd keys
        yield entry.key[above:], entry


class ObjectFolder(Closing):
    """The objects whose keys begin with that of a folder. ``path``: its name in messages."""

    def __init__(self, url: str, warn: Callable[[str], None], output: str = "") -> None:
        """output: a URL that is left out if it lies inside, as the pack that is being written."""
        self._folder = parse_folder(url)
        self.path = self._folder.name
        self._entries: list[ListedObject] = []
        self._names = Names(self.path, warn)
        self._output = output

    def scan(self, objects: Iterable[tuple[str, ListedObject]] | None = None) -> Contents:
        """List the objects, and return their tree.

        objects: those that are taken, as ``list_folder`` yields them; None: all.

        Raises:
            SourceNotFoundError: there are none.
            UsageError: a key cannot be a path, or an object has the name of a folder.
            AccessError, ReadError: as ``list_objects``.

        """
        folders: set[str] = set()
        paths: list[str] = []
        for path, entry in list_folder(self._folder) if objects is None else objects:
            if self._name(entry).url == self._output:
                continue
            folders.update(_folders_above(path, folders))
            paths.append(path)
            self._entries.append(entry)
        for k, (path, entry) in enumerate(zip(paths, self._entries, strict=True)):
            if path in folders:
                raise two_names(self._name(entry))
            self._names.add_file(path.encode(), k, entry.size, MODE, entry.mtime_ns)
        if not self._entries:
            raise no_objects(self._folder)
        return self._names.lay_out()

    def each(self, work: Work, contents: Contents, jobs: Jobs, threads: int) -> None:
        """Pass each object to ``work``, in the order of the records."""
        runs = list(divide(contents.sizes, _TOGETHER, _OBJECTS))

        def next_run(run: tuple[int, int]) -> None:
            records = np.arange(*run, dtype=np.uint32)
            entries = [self._entries[place] for place in contents.places[run[0] : run[1]].tolist()]
            files = self._open(entries)
            try:
                if len(files) == 1 and entries[0].size > BLOCK:
                    work.file(run[0], self._pieces(files[0]))
                    return
                data, starts = self._fetch(files)
                self._hand_on(work, records, starts, data)
            finally:
                for file in files:
                    file.close()

        jobs.run(next_run, runs, max(threads, 2), 1)

    def close(self) -> None:
        """Do nothing: objects are open only while they are fetched."""

    # ------------------------------------------------------------ fetching

    def _name(self, entry: ListedObject) -> ObjectName:
        return ObjectName(self._folder.scheme, self._folder.bucket, entry.key)

    def _open(self, entries: list[ListedObject]) -> list[RemoteFile]:
        names = [self._name(entry) for entry in entries]
        signed = sign_all(self._folder, [name.key for name in names], _VALID)
        return [
            RemoteFile(name, (url, entry.size, entry.etag))
            for name, url, entry in zip(names, signed, entries, strict=True)
        ]

    def _fetch(self, files: list[RemoteFile]) -> tuple[UInt8Array, np.ndarray]:
        """Return the bytes of whole objects, and where each begins in them."""
        sizes = np.array([file.size for file in files], np.int64)
        starts = np.concatenate([[0], np.cumsum(sizes)])
        data = np.empty(int(starts[-1]), np.uint8)
        full = np.flatnonzero(sizes)
        self._read(
            [files[k] for k in full], np.zeros(len(full), np.int64), sizes[full], data.ctypes.data + starts[:-1][full]
        )
        return data, starts[:-1]

    def _pieces(self, file: RemoteFile) -> Iterator[bytes]:
        """Yield a large object in pieces of BLOCK bytes, several ranges of which are fetched at a time."""
        for begin in range(0, file.size, _TOGETHER):
            data = np.empty(min(_TOGETHER, file.size - begin), np.uint8)
            starts = np.arange(0, len(data), _RANGE)
            lengths = np.minimum(len(data) - starts, _RANGE)
            self._read([file] * len(starts), begin + starts, lengths, data.ctypes.data + starts)
            for at in range(0, len(data), BLOCK):
                yield data[at : at + BLOCK].tobytes()

    def _read(self, files: list[RemoteFile], offsets: np.ndarray, lengths: np.ndarray, dest: np.ndarray) -> None:
        requests = np.zeros(len(files), engine.REQUEST)
        requests["fd"] = [file.descriptor for file in files]
        requests["offset"], requests["length"], requests["dest"] = offsets, lengths, dest
        requests["around"] = _RANGE
        if not RemoteFile.read_batch(requests):
            for file, status in zip(files, (-requests["status"]).tolist(), strict=True):
                if status:
                    raise self._failure(file, status)

    def _failure(self, file: RemoteFile, status: int) -> Exception:
        if status in (errno.ESTALE, errno.ENOENT, errno.ENODATA):
            what = "vanished" if status == errno.ENOENT else "changed"
            return SourceChangedError(f"{file.name}: {what} while it was packed; pack it when nothing changes it")
        return file.failure(status)

    def _hand_on(self, work: Work, records: UInt32Array, starts: np.ndarray, data: UInt8Array) -> None:
        """Pass objects that were fetched together to ``work``: small ones together, large ones in pieces."""
        sizes = np.diff(np.append(starts, len(data)))
        small = sizes <= BLOCK
        for k in np.flatnonzero(~small).tolist():
            view = data[starts[k] : starts[k] + sizes[k]]
            work.file(int(records[k]), (view[at : at + BLOCK].tobytes() for at in range(0, len(view), BLOCK)))
        if small.any():
            work.files(records[small], np.ascontiguousarray(starts[small]), data)


def two_names(name: ObjectName) -> UsageError:
    """Return the error for an object with the name of a folder of others."""
    return UsageError(f"{name.name}: an object and a folder have this name; rename one")


def no_objects(folder: ObjectName) -> SourceNotFoundError:
    """Return the error for a folder without objects."""
    return SourceNotFoundError(f"{folder.name}: no objects in this folder")


def _folders_above(path: str, known: set[str]) -> Iterator[str]:
    """Yield the folders that a path is in, as far as they are not known."""
    folder = os.path.dirname(path)
    while folder and folder not in known:
        yield folder
        folder = os.path.dirname(folder)
