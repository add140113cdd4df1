"""Names: the folder that an archive would be unpacked to, in memory, and the tree that it is packed as.

Nothing is unpacked to a disk, so no member can be written outside of a folder. Each name has the content that tar(1)
would give it: the last of several members with one name counts, and a hard link is a further name of the file that had
the target's name when the link was read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from fffs.base.memory import available_memory
from fffs.errors import UnsupportedError
from fffs.files.dirfd import PATH_MAX
from fffs.packing.mtimes import nearest_mtime
from fffs.tree.builder import DIRECTORY, TreeBuilder
from fffs.tree.tree import NAME_MAX

TARGET_MAX: Final = PATH_MAX
# An archive bomb must not fill memory with names: they may take half of the available memory, or as much as three
# million names need. The size of the archive is no bound: names that follow a pattern compress to a byte each.
EACH: Final = 512  # bytes of memory for a name, its object and its node in the tree, ...
COPIES: Final = 3  # ... and so many copies of the name itself
FREE: Final = 3_000_000 * EACH


@dataclass(eq=False, slots=True)
class ArchivedFile:
    """A regular file: the size of its data, and the place of the data, whose meaning depends on the archive."""

    place: int
    size: int
    mode: int
    mtime: int
    record: int = -1
    node: int = -1


@dataclass(eq=False, slots=True)
class Link:
    """A symbolic link."""

    target: bytes
    mode: int
    mtime: int
    node: int = -1


@dataclass(eq=False, slots=True)
class LeftOut:
    """A member that cannot be packed. Hard links to it are left out as well."""

    what: str


@dataclass(eq=False, slots=True)
class Folder:
    """A folder. Without a member of its own, as the parent of other members, it has no mode or time."""

    mode: int | None = None
    mtime: int = 0
    entries: dict[bytes, Folder | ArchivedFile | Link | LeftOut] = field(default_factory=dict)


class Names:
    """Collects the members of an archive, in their order. ``shown``: the name of the archive in messages."""

    def __init__(self, shown: str, warn: Callable[[str], None]) -> None:
        """warn: called with a line for everything that is left out or changed."""
        self.shown, self.warn = shown, warn
        self.root = Folder()
        self._room = max(FREE, available_memory() // 2)
        self._newest: int | None = None
        self._stripped = False

    # ------------------------------------------------------------ adding

    def add_folder(self, path: bytes, mode: int, mtime: int) -> None:
        """Add a folder. If it exists already, it gets this mode and time."""
        parts = self._split(path)
        folder = self._folder(parts, path) if parts else self.root
        folder.mode, folder.mtime = stat.S_IFDIR | mode, self._note(path, mtime)

    def add_file(self, path: bytes, place: int, size: int, mode: int, mtime: int) -> None:
        """Add a regular file."""
        self._put(path, ArchivedFile(place, size, stat.S_IFREG | mode, self._note(path, mtime)))

    def add_symlink(self, path: bytes, target: bytes, mtime: int) -> None:
        """Add a symbolic link. It may have any target, because it is not followed here."""
        if not target or len(target) > TARGET_MAX or b"\0" in target:
            raise self._refused(path, f"a symbolic link whose target is empty, over {TARGET_MAX} bytes, or has a NUL")
        self._put(path, Link(target, stat.S_IFLNK | 0o777, self._note(path, mtime)))

    def add_hard_link(self, path: bytes, target: bytes) -> None:
        """Add a further name of an existing file or symbolic link."""
        there: Folder | ArchivedFile | Link | LeftOut | None = self.root
        for part in self._split(target):
            there = there.entries.get(part) if isinstance(there, Folder) else None
        if there is None or isinstance(there, Folder):
            raise self._refused(path, f"a hard link to {_text(target)}, which is not a file before it in the archive")
        if isinstance(there, LeftOut):
            self.warn(f"{self.shown}: {_text(path)}: a hard link to {there.what}, left out")
        self._put(path, there)

    def leave_out(self, path: bytes, what: str) -> None:
        """Add a member that cannot be packed. It replaces an earlier member of its name, as unpacking it would."""
        self.warn(f"{self.shown}: {_text(path)}: {what}, left out")
        self._put(path, LeftOut(what))

    def _put(self, path: bytes, node: ArchivedFile | Link | LeftOut) -> None:
        parts = self._split(path)
        if not parts:
            raise self._refused(path, "a file or link without a name")
        folder = self._folder(parts[:-1], path)
        old = folder.entries.get(parts[-1])
        if isinstance(old, Folder) and old.entries:
            raise self._refused(path, "a folder that is not empty has the same name as this file or link")
        if isinstance(node, Link):
            self._count(node.target)
        if old is None:
            self._count(parts[-1])
        elif old is not node:
            self.warn(f"{self.shown}: {_text(path)}: several members have this name; only the last one is packed")
            del folder.entries[parts[-1]]
        folder.entries[parts[-1]] = node

    def _folder(self, parts: list[bytes], path: bytes) -> Folder:
        """Return the folder at a path, and create missing folders."""
        folder = self.root
        for part in parts:
            there = folder.entries.get(part)
            if there is None:
                self._count(part)
                there = folder.entries[part] = Folder()
            if not isinstance(there, Folder):
                what = "a link, which would be followed" if isinstance(there, Link) else "a file"
                raise self._refused(path, f"{_text(part)} is {what}, not a folder")
            folder = there
        return folder

    def _split(self, path: bytes) -> list[bytes]:
        """Split a path into names. Raises UnsupportedError if a name is invalid."""
        if path.startswith(b"/") and not self._stripped:
            self._stripped = True
            self.warn(f"{self.shown}: the leading '/' of names is left out, as in {_text(path)}")
        parts = [part for part in path.split(b"/") if part not in (b"", b".")]
        if b".." in parts:
            raise self._refused(path, "a name with '..', which would lead out of the folder")
        if b"\0" in path:
            raise self._refused(path, "a name with a NUL byte")
        if max(map(len, parts), default=0) > NAME_MAX:
            raise self._refused(path, f"a name of more than {NAME_MAX} bytes")
        if sum(map(len, parts)) + len(parts) - 1 > PATH_MAX:
            raise self._refused(path, f"a path of more than {PATH_MAX} bytes")
        return parts

    def _note(self, path: bytes, mtime: int) -> int:
        mtime = nearest_mtime(mtime, lambda: f"{self.shown}: {_text(path)}", self.warn)
        if self._newest is None or mtime > self._newest:
            self._newest = mtime
        return mtime

    def _count(self, name: bytes) -> None:
        self._room -= EACH + COPIES * len(name)
        self.refuse_beyond(0)

    def refuse_beyond(self, memory: int) -> None:
        """Raise UnsupportedError if ``memory`` more bytes for names would exceed the limit."""
        if memory > self._room:
            raise UnsupportedError(
                f"{self.shown}: has so many names that they would take more than half of the memory; convert it on a "
                "machine with more memory, or unpack it and pack its folders one by one"
            )

    def _refused(self, path: bytes, why: str) -> UnsupportedError:
        return UnsupportedError(f"{self.shown}: cannot be packed: {_text(path)}: {why}")

    # ------------------------------------------------------------ the tree

    def lay_out(self) -> tuple[TreeBuilder, list[ArchivedFile]]:
        """Return the tree, in the order of ``scan_folder``, and the files, with the numbers of their records set.

        Folders without mode and time get 0755 and the time of the newest member.
        """
        newest = self._newest or 0
        mode, mtime = self.root.mode, self.root.mtime
        builder = TreeBuilder(mode or DIRECTORY, newest if mode is None else mtime)
        files: list[ArchivedFile] = []
        stack: list[tuple[int, Iterator[tuple[bytes, Folder | ArchivedFile | Link]]]] = [(0, _entries(self.root))]
        while stack:
            parent, entries = stack[-1]
            for name, entry in entries:
                if isinstance(entry, Folder):
                    mode, mtime = (DIRECTORY, newest) if entry.mode is None else (entry.mode, entry.mtime)
                    stack.append((builder.add_directory(parent, name, mode, mtime), _entries(entry)))
                    break
                if entry.node >= 0:
                    builder.add_link(parent, name, entry.node)
                elif isinstance(entry, Link):
                    entry.node = builder.add_symlink(parent, name, entry.target, entry.mode, entry.mtime)
                else:
                    entry.record = len(files)
                    entry.node = builder.add_file(parent, name, entry.record, entry.mode, entry.mtime)
                    files.append(entry)
            else:
                stack.pop()
        return builder, files


def _entries(folder: Folder) -> Iterator[tuple[bytes, Folder | ArchivedFile | Link]]:
    return ((name, entry) for name, entry in sorted(folder.entries.items()) if not isinstance(entry, LeftOut))


def _text(path: bytes) -> str:
    """Format a path for messages, in one line of limited length."""
    return repr(os.fsdecode(path[:200]) + ("…" if len(path) > 200 else ""))
