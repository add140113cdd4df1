"""The names in a source, as a file system of fsspec: everything that reads no bytes."""

from __future__ import annotations

import datetime
import os
from glob import has_magic
from hashlib import sha256
from operator import itemgetter
from typing import Any, Final

from fsspec.spec import AbstractFileSystem

from fffs.errors import ClosedError
from fffs.fsspec.entries import Entries
from fffs.layouts.view import TreeView, not_found

PREFIX: Final = "ffr://"


class NamedFileSystem(AbstractFileSystem):  # type: ignore[misc] # it has no types
    """A file system over entries, which ``FfrFileSystem`` opens. Paths are described there."""

    protocol = "ffr"
    root_marker = ""

    _entries: Entries | None
    _source_name: str
    """For messages."""

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        text = os.fsdecode(path).removeprefix(PREFIX)
        if text.startswith("/") or text.endswith(("/", "/.")) or "//" in text or f"/{text}".find("/./") >= 0:
            text = "/".join(part for part in text.split("/") if part not in ("", "."))
        return "" if text == "." else text

    # ------------------------------------------------------------ names

    @property
    def _names(self) -> Entries:
        if self._entries is None:
            raise ClosedError(f"{self._source_name}: the file system has been closed")
        return self._entries

    @property
    def _shown(self) -> TreeView:
        return self._names.view

    def _missing(self, path: str) -> FileNotFoundError:
        return not_found(path, self._source_name)

    def _find(self, path: str, follow: bool = True) -> tuple[str, int]:
        """Return the normal form of a path, and its node. Raises EntryNotFoundError."""
        plain, tree = self._strip_protocol(path), self._shown.tree
        try:
            node = (tree.follow if follow else tree.locate)(os.fsencode(plain))
        except UnicodeEncodeError:  # no file has this name
            node = None
        if node is None:
            raise self._missing(plain)
        return plain, node

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Return name, size, type ("file", "directory", "link") and the attributes of a path. A link at its end is not
        followed: its size is that of the file that it leads to, and ``destination`` its target.
        """
        plain, node = self._find(path, follow=False)
        return self._names.describe(node, plain)

    def ls(self, path: str = "", detail: bool = True, **kwargs: Any) -> list[Any]:
        """Return the entries of a folder, sorted by their bytes, or a file itself: as ``info``, or their paths."""
        plain, node = self._find(path)
        tree = self._shown.tree
        if not tree.is_dir(node):
            return [self.info(plain)] if detail else [plain]
        return self._names.listing(node, plain, detail=detail)

    def find(
        self, path: str = "", maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **kwargs: Any
    ) -> Any:
        """Return the sorted paths of all files and links below a folder, also as a dictionary of ``info``.

        Args:
            path: the folder. That of a file returns the file.
            maxdepth: how many levels are searched.
            withdirs: include folders, and the one that is searched unless it is the root.
            detail: return a dictionary.

        """
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        plain = self._strip_protocol(path)
        try:
            node = self._find(plain)[1]
        except FileNotFoundError:
            return {} if detail else []
        if not self._shown.tree.is_dir(node):
            return {plain: self.info(plain)} if detail else [plain]
        found = self._names.below(node, plain, maxdepth, folders=withdirs, detail=detail)
        if withdirs and plain:
            found.append(self._names.describe(node, plain) if detail else plain)
        if not detail:
            return sorted(found)
        return {info["name"]: info for info in sorted(found, key=itemgetter("name"))}

    def exists(self, path: str, **kwargs: Any) -> bool:
        """Return whether there is a file or folder at a path; False for a link that leads nowhere."""
        try:
            self._find(path)
        except FileNotFoundError:
            return False
        return True

    def lexists(self, path: str, **kwargs: Any) -> bool:
        """As ``exists``, but True for every link."""
        try:
            self._find(path, follow=False)
        except FileNotFoundError:
            return False
        return True

    def isfile(self, path: str) -> bool:
        """Return whether a path leads to a file."""
        return self.exists(path) and self._shown.tree.is_file(self._find(path)[1])

    def isdir(self, path: str) -> bool:
        """Return whether a path leads to a folder."""
        return self.exists(path) and self._shown.tree.is_dir(self._find(path)[1])

    def expand_path(self, path: Any, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any) -> list[str]:
        """As in the base class, but a path that exists is itself, even if it has ``*``, ``?`` or ``[``."""
        given = [path] if isinstance(path, (str, os.PathLike)) else list(path)
        plain = [self._strip_protocol(one) for one in given]
        literal = {one for one in plain if not has_magic(one) or self.lexists(one)}
        found = set(literal)
        if recursive:
            for one in literal:
                found.update(self.find(one, maxdepth=maxdepth, withdirs=True))
        if patterns := [one for one in plain if one not in literal]:
            found.update(super().expand_path(patterns, recursive=recursive, maxdepth=maxdepth, **kwargs))
        return sorted(found)

    def modified(self, path: str) -> datetime.datetime:
        """Return the modification time of a file."""
        seconds = int(self._shown.tree.mtime[self._find(path)[1]]) / 1e9
        return datetime.datetime.fromtimestamp(seconds, tz=datetime.timezone.utc)

    def created(self, path: str) -> datetime.datetime:
        """Return the modification time of a file, the only one that a source keeps."""
        return self.modified(path)

    def ukey(self, path: str) -> str:
        """Return a text that is another one if the source of this instance is another one."""
        plain, node = self._find(path)
        return sha256(f"{plain!r} {self._names.version} {node}".encode()).hexdigest()

    def checksum(self, path: str) -> int:
        """Return a number that is another one if the source is another one."""
        return int(self.ukey(path), 16)
