"""PackedFolder: reads files and lists names in a packed folder, without mounting it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from fffs.base.cache_settings import cache_options, caching
from fffs.base.paths import PathLike
from fffs.base.withblock import Closing
from fffs.errors import ClosedError, UsageError
from fffs.files.file import UInt8Array
from fffs.layouts import load_packed
from fffs.layouts.samples import SampleSequence
from fffs.layouts.view import ROOT_INODE, TreeView, not_found
from fffs.reader import FileReader
from fffs.records.identity import Identity
from fffs.records.record_file import RecordFile
from fffs.records.reopening import OpenedNames, opened_again, refuse_others, refuse_replaced

Names = list[str]  # in the class, list is its method


class PackedFolder(Closing):
    """The files and folders of one packed folder, or of several merged into one (the first that has a path counts).

    Paths are relative to the packed folder and normalised lexically (``./a``, ``a/``, ``a//b``). ``""`` and ``"."``
    are the folder itself; absolute paths and ``..`` never exist. Symbolic links are followed inside the folder.

    May be used from any thread, and after fork in parent and child. Can be pickled and copied: as with ``FileReader``,
    the copy opens the files again and raises SourceChangedError if they are different.

    Examples:
        >>> with fffs.PackedFolder("photos.ffr") as photos:
        ...     photos.list("cat")
        ...     [bytes(data) for data in photos.read(["cat/2.jpg", "dog/1.jpg"])]
        ['1.jpg', '2.jpg']
        [b'second cat', b'first dog']

    """

    def __init__(
        self,
        fname: PathLike | list[Any] | tuple[Any, ...],
        check_data: bool = True,
        *,
        cache: PathLike | None = None,
        cache_size: str | int | None = None,
    ) -> None:
        """Open packed files. fname: one, a folder, or a list of them. check_data: compare checksums at every read.
        cache, cache_size: as for ``FileReader``.

        Raises:
            FormatError: a file is damaged, or not a packed folder. MetadataError: its tree is damaged.
            SourceNotFoundError, ReadError, UsageError: as ``FileReader``.

        """
        self._names = OpenedNames(fname if isinstance(fname, (list, tuple)) else [fname])
        self._readers: dict[str, FileReader] = {}  # at most one; no lock, which a child of fork could find locked
        self.check_data = bool(check_data)
        self._options = cache_options(cache, cache_size)
        self._view: TreeView = self._load(self._names.given)
        self.fnames = [file.index.path for file in self._view.store.files]
        """The paths of the packed files."""

    def _load(self, names: Any) -> TreeView:
        with caching(self._options.get("cache"), self._options.get("cache_size")):
            return load_packed(names, self.check_data)

    @property
    def reader(self) -> FileReader:
        """A FileReader of the same files, opened on first use. Raises SourceChangedError if they were replaced."""
        if self._view.store.closed:
            raise ClosedError(f"{self.fnames[0]}: the reader has been closed")
        if not self._readers:
            reader = FileReader(self._names.now(), self.check_data, **self._options)
            refuse_others(reader.store, self._view.store.identity)  # otherwise names and bytes might not match
            # If several threads come here at once, one reader is kept.
            if self._readers.setdefault("reader", reader) is not reader or self._view.store.closed:
                reader.close()
        return self._readers["reader"]

    # ------------------------------------------------------------ names

    def _node(self, path: PathLike) -> int | None:
        try:
            return self._view.tree.follow(os.fsencode(path))
        except UnicodeEncodeError:  # no file can have this name
            return None

    def exists(self, path: PathLike) -> bool:
        """Return whether there is a file or folder at path."""
        return self._node(path) is not None

    def is_file(self, path: PathLike) -> bool:
        """Return whether there is a file at path."""
        node = self._node(path)
        return node is not None and self._view.tree.is_file(node)

    def is_dir(self, path: PathLike) -> bool:
        """Return whether there is a folder at path."""
        node = self._node(path)
        return node is not None and self._view.tree.is_dir(node)

    def num_files(self) -> int:
        """Return the number of files. Hard links count once."""
        return int((self._view.tree.kinds == stat.S_IFREG).sum())

    def list(
        self, path: PathLike | None = None, list_file: bool = True, list_dir: bool = True, recursive: bool = False
    ) -> list[str]:
        """Return the names in a folder, without dangling links.

        Args:
            path: the folder; None is the packed folder itself.
            list_file: include files and links to files.
            list_dir: include folders and links to folders.
            recursive: include the content of subfolders (not of links), after the name of each.

        Returns:
            Paths relative to the listed folder; in each folder sorted by their bytes.

        Raises:
            EntryNotFoundError: there is no such path. UsageError: the path is not a folder.

        """
        tree = self._view.tree
        node = self._node(path or "")
        if node is None:
            raise not_found(os.fsdecode(path or ""), self.fnames[0])
        base = os.fsencode(path or "")
        if not tree.is_dir(node):
            raise UsageError(f"{os.fsdecode(base)}: not a folder")
        found = tree.walk(node) if recursive else tree.entries(node)
        return [os.fsdecode(name) for name, mode in self._modes(base, found) if (list_dir if mode else list_file)]

    def walk(self, path: PathLike | None = None) -> Iterator[tuple[str, Names, Names]]:
        """Yield (path, names of folders, names of files) of a folder and all below it, as ``os.walk`` does top-down.

        Links to files are files, links to folders are folders that are not entered, and dangling links are left out.
        Folders that the caller removes from the list are not entered.

        Raises:
            EntryNotFoundError: there is no such path. UsageError: the path is not a folder.

        """
        if self._node(path or "") is None:
            raise not_found(os.fsdecode(path or ""), self.fnames[0])
        tree, top = self._view.tree, os.fsencode(path or "")
        stack = [b"" if top == b"." else top]
        while stack:
            base = stack.pop()
            node = self._node(base)
            if node is None or not tree.is_dir(node):
                raise UsageError(f"{os.fsdecode(base)}: not a folder")
            folders: Names = []
            files: Names = []
            for name, is_folder in self._modes(base, tree.entries(node)):
                (folders if is_folder else files).append(os.fsdecode(name))
            yield os.fsdecode(base), folders, files
            inner = [os.path.join(base, os.fsencode(name)) for name in folders]
            stack += [below for below in reversed(inner) if not tree.is_symlink(tree.locate(below) or 0)]

    def stat(self, path: PathLike, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return what ``os.stat`` would tell of a file or folder in a mount, but for the device, and who owns it: 0.

        Raises EntryNotFoundError.
        """
        node = self._node(path) if follow_symlinks else self._located(path)
        if node is None:
            raise not_found(os.fsdecode(path), self.fnames[0])
        mode, nlink, size, mtime, _ = self._view.attributes(node + ROOT_INODE)
        seconds = mtime // 10**9
        values = (mode, node + ROOT_INODE, 0, nlink, 0, 0, size, seconds, seconds, seconds)
        times = {f"st_{kind}time": mtime / 1e9 for kind in "amc"} | {f"st_{kind}time_ns": mtime for kind in "amc"}
        return os.stat_result(values, times)

    def _located(self, path: PathLike) -> int | None:
        try:
            return self._view.tree.locate(os.fsencode(path))
        except UnicodeEncodeError:
            return None

    def readlink(self, path: PathLike) -> str:
        """Return the target of a symbolic link. Raises EntryNotFoundError, UsageError: it is none."""
        node = self._located(path)
        if node is None:
            raise not_found(os.fsdecode(path), self.fnames[0])
        if not self._view.tree.is_symlink(node):
            raise UsageError(f"{os.fsdecode(path)}: not a symbolic link")
        return os.fsdecode(self._view.tree.target(node))

    def size(self, path: PathLike) -> int:
        """Return the size of a file in bytes; raises what ``read`` raises."""
        return self._view.store.length(self._record(path))

    def _modes(self, base: bytes, found: Iterable[tuple[bytes, int]]) -> Iterator[tuple[bytes, bool]]:
        """Yield (name, whether it is a folder) for entries that were found, without dangling links."""
        tree = self._view.tree
        for name, node in found:
            target: int | None = node
            if tree.is_symlink(node):
                target = tree.follow(base + b"/" + name if base else name)
            if target is not None:
                yield name, tree.is_dir(target)

    # ------------------------------------------------------------ bytes

    def _record(self, path: PathLike) -> int:
        node = self._node(path)
        if node is None:
            raise not_found(os.fsdecode(path), self.fnames[0])
        if not self._view.tree.is_file(node):
            raise UsageError(f"{os.fsdecode(path)}: a folder, not a file")
        return self._view.tree.record(node)

    def read(self, paths: PathLike | Iterable[PathLike]) -> Any:
        """Read files in one batch. Return a 1-D writable uint8 array per path, in a list in the same order. For a
        single path return a single array.

        Raises:
            EntryNotFoundError, UsageError (a folder), ChecksumError, TruncatedError, SourceChangedError, ReadError,
            ClosedError.

        """
        if isinstance(paths, (str, bytes, os.PathLike)):
            return self.read_one(paths)
        records = [self._record(path) for path in paths]
        return self._view.store.read(records)

    def read_one(self, path: PathLike) -> UInt8Array:
        """Read one file as a 1-D writable uint8 array; raises what ``read`` raises."""
        return self._view.store.read_one(self._record(path))

    def read_range(self, path: PathLike, start: int, stop: int) -> UInt8Array:
        """Return the bytes of one file from start to stop (both limited to its size) as a 1-D writable uint8 array.

        If the file has block checksums, only the blocks around the range are read and checked. Raises what ``read``
        raises.
        """
        return self._view.store.read_range(self._record(path), start, stop)

    def open(self, path: PathLike) -> RecordFile:
        """Return a file as a buffered binary file object, which can seek, for code that reads files.

        It is read only while this PackedFolder is open. Not thread-safe, as any file object. Raises EntryNotFoundError,
        UsageError (a folder); reading raises what ``read`` raises.
        """
        return RecordFile(self._view.store, self._record(path), os.fsdecode(path))

    # ------------------------------------------------------------ life

    def close(self) -> None:
        """Close the files. May be called again."""
        self._view.close()
        for reader in self._readers.values():
            reader.close()

    def __reduce__(self) -> tuple[Any, ...]:
        store, names = self._view.store, self._names.now()
        refuse_replaced(store, lambda: self._load(names).store)
        kind = partial(type(self), **self._options) if self._options else type(self)
        return opened_again, (kind, self._names, self.check_data), (self.fnames, store.identity)

    def __setstate__(self, state: tuple[Any, Sequence[Identity]]) -> None:
        self.fnames, identity = state
        refuse_others(self._view.store, identity)


class PackedSamples(SampleSequence, Closing):
    """The samples of packed folders, as WebDataset would read them from a tar: a sequence of dictionaries.

    A sample consists of the files that have the same name up to the first dot: ``a/7.jpg`` and ``a/7.cls`` are
    ``{"__key__": "a/7", "jpg": b"...", "cls": b"..."}``. Endings are in lower case. Symbolic links, and files whose
    names have no dot or begin with one, belong to no sample. Samples are numbered through the folders, those of a
    folder before those of its subfolders, and in the order of their names.

    ``samples[k]``, ``samples[a:b]`` and iteration work, and loaders of torch and Grain get several samples with one
    read. May be used from any thread, and after fork; can be pickled, as ``PackedFolder``.

    Example: ``docs/migrating.md``.
    """

    def __init__(self, folder: PackedFolder | PathLike | list[Any] | tuple[Any, ...]) -> None:
        """folder: as for ``PackedFolder``, or one, which ``close`` closes. Raises as ``PackedFolder``."""
        self.folder = folder if isinstance(folder, PackedFolder) else PackedFolder(folder)
        super().__init__(self.folder._view)

    def close(self) -> None:
        """Close the files. May be called again."""
        self.folder.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.folder,)
