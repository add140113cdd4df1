"""FfrFileSystem: the file system ``ffr`` of fsspec."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NoReturn

from fsspec.callbacks import DEFAULT_CALLBACK

from fffs.base.descriptors import above_standard
from fffs.base.failures import writing
from fffs.base.paths import PathLike, without_zero
from fffs.files.fsspec_systems import no_block_cache
from fffs.files.pwrite import NewFile
from fffs.fsspec.entries import Entries
from fffs.fsspec.names import NamedFileSystem
from fffs.layouts.shared_views import OpenSource, open_view
from fffs.records.identity import Identity, joined
from fffs.records.read_each import read_each
from fffs.records.record_file import RecordFile
from fffs.records.reopening import require_same


class FfrFileSystem(NamedFileSystem):
    """The files that a source holds, read-only: those of packs, the records of other files, the blobs of a data set.

    An instance shows the source as it was when the instance was made; ``invalidate_cache`` makes it show the current
    one. Instances of one process share the open files. May be used from any thread, and after fork in parent and child.
    Can be pickled: the copy opens the source again, and raises SourceChangedError if it is another one.

    Paths are relative to the root of the source. Links in them are followed inside the source. Names that are not UTF-8
    are those of ``os.fsdecode``.

    Examples:
        >>> import fsspec
        >>> fs = fsspec.filesystem("ffr", fo="photos.ffr")
        >>> fs.find(""), fs.cat("dog/1.jpg")
        (['cat/1.jpg', 'cat/2.jpg', 'dog/1.jpg'], b'first dog')

    """

    cachable = False  # open sources are shared instead, as long as their files are the current ones
    missing_exceptions: ClassVar = (FileNotFoundError,)

    def __init__(
        self,
        fo: PathLike | Sequence[PathLike] = "",
        target_protocol: str | None = None,
        target_options: dict[str, Any] | None = None,
        check_data: bool = True,
        format: str | None = None,
        suffix: str = "",
        **storage_options: Any,
    ) -> None:
        """Open a source.

        Args:
            fo: a file, a folder, a URL, or a list of them.
            target_protocol: the protocol of fsspec for ``fo``, which is then a path of it.
            target_options: for the file system of ``target_protocol``. With options, it is used for all protocols;
                otherwise fffs reads files, s3, gs, az, http and https itself.
            check_data: compare checksums at every read.
            format: "ffrecord", "tfrecord", "ofrecord" or "bag", for files that are not recognised.
            suffix: appended to the numbered names of records.
            storage_options: for the base class.

        Raises:
            FormatError, SourceNotFoundError, ReadError, AccessError, UsageError: the source cannot be opened.

        """
        super().__init__(**storage_options)
        self._source = OpenSource.of(fo, target_protocol, target_options, check_data, format, suffix)
        self._source_name = self._source.shown
        self._entries = Entries(open_view(self._source))

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (type(self), self._source, joined(self._shown.store.identity))

    # ------------------------------------------------------------ bytes

    def _record(self, path: str) -> int:
        plain, node = self._find(path)
        if not self._shown.tree.is_file(node):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), plain)
        return self._shown.tree.record(node)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        """Return the bytes of a file, or a range of them; negative bounds count from the end."""
        record, store = self._record(path), self._shown.store
        if start is None and end is None:
            return store.read_one(record).tobytes()
        return store.read_range(record, *_bounds(store.length(record), start, end)).tobytes()

    def cat(self, path: Any, recursive: bool = False, on_error: str = "raise", **kwargs: Any) -> Any:
        """Return the bytes of a file, or of several by path, which are read in batches.

        Args:
            path: a path, a pattern, or a list of both.
            recursive: read all files below folders.
            on_error: "raise", "omit" or "return" the exception of a file that cannot be read.
            kwargs: ``start`` and ``end``, as for ``cat_file``.

        """
        paths = self.expand_path(path, recursive=recursive)
        if isinstance(path, (str, os.PathLike)) and not recursive and paths == [self._strip_protocol(path)]:
            return self.cat_file(paths[0], **kwargs)
        if recursive:
            paths = [one for one in paths if not self.isdir(one)]
        found = self._read_each(paths, lambda size: _bounds(size, kwargs.get("start"), kwargs.get("end")), on_error)
        return {one: data for one, data in zip(paths, found, strict=True) if data is not None}

    def cat_ranges(
        self, paths: Any, starts: Any, ends: Any, max_gap: int | None = None, on_error: str = "return", **kwargs: Any
    ) -> list[Any]:
        """Return ranges of files, which are read in batches. ``starts`` and ``ends`` are lists or the same for all."""
        if not isinstance(paths, list):
            raise TypeError("paths must be a list")
        begins = starts if isinstance(starts, list) else [starts] * len(paths)
        until = ends if isinstance(ends, list) else [ends] * len(paths)
        if not len(begins) == len(until) == len(paths):
            raise ValueError("paths, starts and ends must have the same length")
        bounds = iter(zip(begins, until, strict=True))
        return self._read_each(paths, lambda size: _bounds(size, *next(bounds)), on_error)

    def _read_each(self, paths: list[str], bounds: Callable[[int], tuple[int, int]], on_error: str) -> list[Any]:
        """Return the bytes of each path, its exception, or None if it is to be omitted.

        bounds: called once per path, in their order, with its size, or 0 if it is not a file.
        """
        store = self._shown.store
        ranges: list[tuple[int, int, int]] = []
        out: list[Any] = []
        for path in paths:
            try:
                record = self._record(path)
                out.append(None)
                ranges.append((record, *bounds(store.length(record))))
            except OSError as error:
                out.append(error)
                bounds(0)
        found = iter(read_each(store, ranges))
        return _settle([next(found) if item is None else item for item in out], on_error)

    def _open(self, path: str, mode: str = "rb", *args: Any, **kwargs: Any) -> RecordFile:
        if mode != "rb":
            self._refuse(path)
        if kwargs.get("cache_type") == "none" and "size" in kwargs:  # fsspec's cache of blocks
            raise no_block_cache(path)
        return RecordFile(self._shown.store, self._record(path), self._strip_protocol(path))

    def get_file(
        self, rpath: str, lpath: Any = None, callback: Any = DEFAULT_CALLBACK, outfile: Any = None, **kwargs: Any
    ) -> None:
        """Copy a file to the local disk. A file that is damaged leaves none there, except at the end of a link."""
        if outfile is not None or not isinstance(lpath, (str, os.PathLike)) or self.isdir(rpath):
            super().get_file(rpath, lpath, callback=callback, outfile=outfile, **kwargs)
            return
        record, path = self._record(rpath), without_zero(lpath)
        callback.set_size(self._shown.store.length(record))
        with writing(path):
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            descriptor = above_standard(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666))
        try:
            self._shown.store.copy_to(record, NewFile(descriptor, path), callback.relative_update)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                made = os.fstat(descriptor)
                if stat.S_ISREG(made.st_mode) and os.path.samestat(os.lstat(path), made):  # no device, and no link
                    os.unlink(path)
            raise
        finally:
            os.close(descriptor)

    # ------------------------------------------------------------ life

    def invalidate_cache(self, path: str | None = None) -> None:
        """Show the current source from now on, if it was replaced."""
        self._entries = Entries(open_view(self._source))

    def close(self) -> None:
        """Let go of the source, whose files are closed as soon as no other instance uses them."""
        self._entries = None
        self._source.forget()

    # ------------------------------------------------------------ changes

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise the error of a read-only file system."""
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(args[0]) if args else None)

    mkdir = makedirs = rmdir = rm = rm_file = _rm = cp_file = copy = mv = touch = pipe_file = put_file = put = _refuse


def _reopen(kind: type[FfrFileSystem], source: OpenSource, identity: Identity) -> FfrFileSystem:
    """Return an instance for a pickled one. Raises SourceChangedError, and what opening raises."""
    made = kind(**source.arguments())
    require_same(made._shown.store, identity, source.shown)
    return made


def _bounds(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    """Return the bounds of a range as those of a slice."""
    begin, until, _ = slice(start, end).indices(size)
    return begin, max(begin, until)


def _settle(found: list[Any], on_error: str) -> list[Any]:
    if on_error == "return":
        return found
    for k, item in enumerate(found):
        if isinstance(item, Exception):
            if on_error == "raise":
                raise item
            found[k] = None
    return found
