"""ObjectFolder: the objects in a folder of a store, as the files of a folder that is packed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
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
from fffs.objects.names import ObjectName, parse_url
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


class ObjectFolder(Closing):
    """The objects whose keys begin with that of a folder. ``path``: its name in messages."""

    def __init__(self, url: str, warn: Callable[[str], None], output: str = "") -> None:
        """output: a URL that is left out if it lies inside, as the pack that is being written."""
        self._folder = parse_url(url)
        if not self._folder.is_folder and not self._folder.is_web:  # which cannot be listed
            raise UsageError(f"{self._folder.name}: a folder of a store ends with a slash; write {self._folder.name}/")
        self.path = self._folder.name
        self._prefix = f"{self._folder.key.rstrip('/')}/" if self._folder.key else ""
        self._entries: list[ListedObject] = []
        self._names = Names(self.path, warn)
        self._output = output

    def scan(self) -> Contents:
        """List the objects, and return their tree.

        Raises:
            SourceNotFoundError: there are none.
            UsageError: a key cannot be a path, or an object has the name of a folder.
            AccessError, ReadError: as ``list_objects``.

        """
        folders: set[str] = set()
        for entry in list_entries(self._folder):
            target = parse_url(f"{self._folder.scheme}://{self._folder.bucket}/{entry.key}")  # refuses odd keys
            if target.url == self._output:
                continue
            folders.update(_folders_above(entry.key[len(self._prefix) :], folders))
            self._entries.append(entry)
        for k, entry in enumerate(self._entries):
            path = entry.key[len(self._prefix) :]
            if path in folders:
                raise UsageError(f"{self._name(entry).name}: an object and a folder have this name; rename one")
            self._names.add_file(path.encode(), k, entry.size, MODE, entry.mtime_ns)
        if not self._entries:
            raise SourceNotFoundError(f"{self.path}: no objects in this folder")
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


def _folders_above(path: str, known: set[str]) -> Iterator[str]:
    """Yield the folders that a path is in, as far as they are not known."""
    folder = os.path.dirname(path)
    while folder and folder not in known:
        yield folder
        folder = os.path.dirname(folder)
