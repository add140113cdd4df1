"""Names: the folder that an archive would be unpacked to, in memory, and the tree that it is packed as.

Nothing is ever unpacked, so nothing can leave a folder; but what a name would lead to must be what it would be with
tar(1): of several members with one name the last one counts, and a hard link is one more name of the file that was
there when it came.
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
from fffs.packing.scan import nearest_mtime
from fffs.tree.builder import DIRECTORY, TreeBuilder
from fffs.tree.tree import NAME_MAX

TARGET_MAX: Final = PATH_MAX
# A bomb must not fill memory with names: they may take half of what there is, or as much as three million need. How
# large the archive is says nothing: names that follow a pattern are compressed to a byte each.
EACH: Final = 512  # bytes of memory for a name, with what it names and its place in the tree ...
COPIES: Final = 3  # ... and so often its own bytes
FREE: Final = 3_000_000 * EACH


@dataclass(eq=False, slots=True)
class ArchivedFile:
    """A regular file: where its bytes are, as its archive counts, and how many."""

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
    """Something that cannot be packed, and all its further names neither."""

    what: str


@dataclass(eq=False, slots=True)
class Folder:
    """A folder. One that is only a part of other names has no mode and time of its own."""

    mode: int | None = None
    mtime: int = 0
    entries: dict[bytes, Folder | ArchivedFile | Link | LeftOut] = field(default_factory=dict)


class Names:
    """What the members of an archive make, in the order in which they come. ``shown`` is the archive in messages."""

    def __init__(self, shown: str, warn: Callable[[str], None]) -> None:
        """warn: gets a line for what is not kept as it is."""
        self.shown, self.warn = shown, warn
        self.root = Folder()
        self._room = max(FREE, available_memory() // 2)
        self._newest: int | None = None
        self._stripped = False

    # ------------------------------------------------------------ adding

    def add_folder(self, path: bytes, mode: int, mtime: int) -> None:
        """A folder; one that is there already gets its mode and time."""
        parts = self._split(path)
        folder = self._folder(parts, path) if parts else self.root
        folder.mode, folder.mtime = stat.S_IFDIR | mode, self._note(path, mtime)

    def add_file(self, path: bytes, place: int, size: int, mode: int, mtime: int) -> None:
        """A regular file."""
        self._put(path, ArchivedFile(place, size, stat.S_IFREG | mode, self._note(path, mtime)))

    def add_symlink(self, path: bytes, target: bytes, mtime: int) -> None:
        """A symbolic link, wherever it leads: nobody follows it here."""
        if not target or len(target) > TARGET_MAX or b"\0" in target:
            raise self._refused(path, "a symbolic link that leads to no name that could be one")
        self._put(path, Link(target, stat.S_IFLNK | 0o777, self._note(path, mtime)))

    def add_hard_link(self, path: bytes, target: bytes) -> None:
        """One more name of what is there already."""
        there: Folder | ArchivedFile | Link | LeftOut | None = self.root
        for part in self._split(target):
            there = there.entries.get(part) if isinstance(there, Folder) else None
        if there is None or isinstance(there, Folder):
            raise self._refused(path, f"a hard link to {_text(target)}, which is no file that came before it")
        if isinstance(there, LeftOut):
            self.warn(f"{self.shown}: {_text(path)}: a hard link to {there.what}, left out")
        self._put(path, there)

    def leave_out(self, path: bytes, what: str) -> None:
        """Something that cannot be packed. What had its name before is gone, as when it were unpacked."""
        self.warn(f"{self.shown}: {_text(path)}: {what}, left out")
        self._put(path, LeftOut(what))

    def _put(self, path: bytes, node: ArchivedFile | Link | LeftOut) -> None:
        parts = self._split(path)
        if not parts:
            raise self._refused(path, "a file or link without a name")
        folder = self._folder(parts[:-1], path)
        old = folder.entries.get(parts[-1])
        if isinstance(old, Folder) and old.entries:
            raise self._refused(path, "a folder that holds something and a file or link of the same name")
        if isinstance(node, Link):
            self._count(node.target)
        if old is None:
            self._count(parts[-1])
        elif old is not node:
            self.warn(f"{self.shown}: {_text(path)}: there more than once; the last one counts")
            del folder.entries[parts[-1]]
        folder.entries[parts[-1]] = node

    def _folder(self, parts: list[bytes], path: bytes) -> Folder:
        """The folder of a name, made where it is missing."""
        folder = self.root
        for part in parts:
            there = folder.entries.get(part)
            if there is None:
                self._count(part)
                there = folder.entries[part] = Folder()
            if not isinstance(there, Folder):
                what = "a link, which would be followed" if isinstance(there, Link) else "a file"
                raise self._refused(path, f"{_text(part)} is {what}, and no folder")
            folder = there
        return folder

    def _split(self, path: bytes) -> list[bytes]:
        """The names that a path has, which must be good ones."""
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
        """Raise UnsupportedError when names need so many bytes of memory more, and may not have them."""
        if memory > self._room:
            raise UnsupportedError(
                f"{self.shown}: so many names that they would take more than half of the memory; convert it where "
                "there is more, or unpack it, and pack its folders one by one"
            )

    def _refused(self, path: bytes, why: str) -> UnsupportedError:
        return UnsupportedError(f"{self.shown}: cannot be packed: {_text(path)}: {why}")

    # ------------------------------------------------------------ the tree

    def lay_out(self) -> tuple[TreeBuilder, list[ArchivedFile]]:
        """The tree, in the order of ``scan_folder``, and the files, which get the numbers of their records.

        Folders that have no mode and time of their own get 0755 and the time of the newest member.
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
    """A path in messages, in one line and not too long."""
    return repr(os.fsdecode(path[:200]) + ("…" if len(path) > 200 else ""))
