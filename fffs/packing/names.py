"""Names: the folder that an archive would be unpacked to, in memory, and the tree that it is packed as.

Nothing is unpacked to a disk, so no member can be written outside of a folder. Each name has the content that tar(1)
would give it: the last of several members with one name counts, and a hard link is a further name of the file that had
the target's name when the link was read.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from fffs.base.memory import available_memory
from fffs.errors import FffsError, MetadataError, UnsupportedError
from fffs.native import ffi, lib
from fffs.packing.mtimes import FAR
from fffs.packing.numbering import Named, arrange
from fffs.tree.builder import DIRECTORY, MORE_NAMES
from fffs.tree.tree import Tree

# An archive bomb must not fill memory with names: they may take half of the available memory, or as much as three
# million names need. The size of the archive is no bound: names that follow a pattern compress to a byte each.
EACH: Final = int(lib.FFFS_NAME_EACH)
FREE: Final = 3_000_000 * EACH

# Numbers of what is left out; those below are types of tar(5).
WHATS: Final = 256
TAR_KINDS: Final = {ord("3"): "a device", ord("4"): "a device", ord("6"): "a FIFO"}

TOO_MANY: Final = (
    "has so many names that they would take more than half of the memory; convert it on a machine with more memory, or "
    "unpack it and pack its folders one by one"
)
# The exception, or None for a warning, and the line for each kind of note.
NOTES: Final[dict[int, tuple[type[FffsError] | None, str]]] = {
    lib.FFFS_NOTE_WARNING: (None, "{name}: {special}"),
    lib.FFFS_NOTE_TIME: (None, "{name}: " + FAR),
    lib.FFFS_NOTE_SLASH: (None, "the leading '/' of names is left out, as in {name}"),
    lib.FFFS_NOTE_REFUSED: (UnsupportedError, "cannot be packed: {name}: {special}"),
    lib.FFFS_NOTE_MEMORY: (UnsupportedError, TOO_MANY),
    lib.FFFS_NOTE_NAMES: (UnsupportedError, MORE_NAMES),
    lib.FFFS_NOTE_DAMAGED: (MetadataError, "the member at byte {position}: {special}; the archive is damaged"),
    lib.FFFS_NOTE_CUT: (MetadataError, "{special}; it is truncated, copy it again"),
    lib.FFFS_NOTE_SPARSE: (
        UnsupportedError,
        "{name} is a sparse member; unpack the archive with tar and pack the folder",
    ),
    lib.FFFS_NOTE_VOLUME: (UnsupportedError, "one of several volumes of an archive; join them with tar first"),
}

# The fields of fffs_content.
CONTENT: Final = np.dtype(
    [("mtime", np.int64), ("place", np.int64), ("size", np.int64), ("mode", np.uint32), ("links", np.uint32)]
)
assert CONTENT.itemsize == ffi.sizeof("fffs_content")

Int64Array = npt.NDArray[np.int64]


class Contents(NamedTuple):
    """What an archive is packed as: the tree, and of each record the place of its bytes, whose meaning depends on the
    archive, and their number.
    """

    tree: Tree
    places: Int64Array
    sizes: Int64Array

    @property
    def total_bytes(self) -> int:
        """The size of all files together."""
        return int(self.sizes.sum())


class Names:
    """Collects the members of an archive, in their order. ``shown``: the name of the archive in messages."""

    def __init__(self, shown: str, warn: Callable[[str], None]) -> None:
        """warn: called with a line for everything that is left out or changed."""
        self.shown, self.warn = shown, warn
        names, key = ffi.new("fffs_names **"), int.from_bytes(os.urandom(8), "little")
        if lib.fffs_names_new(key, max(FREE, available_memory() // 2), names) != 0:
            raise MemoryError("not enough memory to list an archive")
        self.native: Any = ffi.gc(names[0], lib.fffs_names_free)
        """For C."""
        self._columns: Any = lib.fffs_names_get(self.native)
        self._whats: list[str] = []

    # ------------------------------------------------------------ adding

    def add_folder(self, path: bytes, mode: int, mtime: int) -> None:
        """Add a folder. If it exists already, it gets this mode and time."""
        self._add(b"5", path, mode=mode, mtime=mtime)

    def add_file(self, path: bytes, place: int, size: int, mode: int, mtime: int) -> None:
        """Add a regular file."""
        self._add(b"0", path, place=place, size=size, mode=mode, mtime=mtime)

    def add_symlink(self, path: bytes, target: bytes, mtime: int) -> None:
        """Add a symbolic link. It may have any target, because it is not followed here."""
        self._add(b"2", path, target, mtime=mtime)

    def leave_out(self, path: bytes, what: str) -> None:
        """Add a member that cannot be packed. It replaces an earlier member of its name, as unpacking it would."""
        if what not in self._whats:
            self._whats.append(what)
        self._add(b"\0", path, what=WHATS + self._whats.index(what))

    def _add(self, kind: bytes, path: bytes, target: bytes = b"", **numbers: int) -> None:
        name, to = ffi.from_buffer("uint8_t[]", path), ffi.from_buffer("uint8_t[]", target)
        member = ffi.new("fffs_member *", {"name": name, "name_size": len(path), "target": to, **numbers})
        member.target_size, member.kind = len(target), kind[0]
        self.check(lib.fffs_names_add(self.native, member))

    # ------------------------------------------------------------ messages

    def check(self, status: int) -> int:
        """Warn of what C noted. Raises the error for its status, or returns it if it is none.

        Raises:
            MetadataError, UnsupportedError, MemoryError.

        """
        count, self._columns.notes_count = int(self._columns.notes_count), 0
        for k in range(count):
            error = self._tell(self._columns.notes[k])
            if error is not None:
                raise error
        if status == -errno.ENOMEM:
            raise MemoryError("not enough memory to list an archive")
        return status

    def refuse_beyond(self, memory: int) -> None:
        """Raise UnsupportedError if ``memory`` more bytes for names would exceed the limit."""
        if memory > self._columns.room:
            raise UnsupportedError(f"{self.shown}: {TOO_MANY}")

    def _tell(self, note: Any) -> FffsError | None:
        """Warn of a note, or return the exception for it."""
        path = bytes(ffi.buffer(note.path, min(note.path_size, lib.FFFS_NOTED)))
        kind, form = NOTES[note.kind]
        line = form.format(
            path=path, name=_text(path, note.path_size), special=self._special(note), position=note.position
        )
        if kind is not None:
            return kind(f"{self.shown}: {line}")
        self.warn(f"{self.shown}: {line}")
        return None

    def _special(self, note: Any) -> str:
        """Return what is special about the member of a note."""
        before, after = (ffi.string(text).decode() for text in (note.before, note.after))
        middle = ""
        if note.between == lib.FFFS_BETWEEN_NUMBER:
            middle = str((note.high << 64) | note.low)
        elif note.between == lib.FFFS_BETWEEN_WHAT:
            middle = self._what(note.what)
        elif note.between == lib.FFFS_BETWEEN_OTHER:
            middle = _text(bytes(ffi.buffer(note.other, min(note.other_size, lib.FFFS_NOTED))), note.other_size)
        return f"{before}{middle}{after}"

    def _what(self, what: int) -> str:
        if what >= WHATS:
            return self._whats[what - WHATS]
        return TAR_KINDS.get(what) or f"a member of type {bytes([what])!r}"

    # ------------------------------------------------------------ the tree

    def lay_out(self) -> Contents:
        """Return the tree, in the order of ``scan_folder``, and where the bytes of the records are. Nothing can be
        added afterwards.

        Folders without mode and time get 0755 and the time of the newest member.
        """
        columns = self._columns
        lib.fffs_names_end(self.native)
        contents = self._array(columns.contents, columns.entries, CONTENT)
        named = self._named(contents)
        folders = np.flatnonzero(((contents["mode"] & 0o170000) == stat.S_IFDIR) & (contents["size"] == 0))
        contents["mode"][folders], contents["mtime"][folders] = DIRECTORY, columns.newest
        root = columns.root.mtime if columns.root.mode else columns.newest

        def mtimes(own: npt.NDArray[np.uint32]) -> Int64Array:
            return np.concatenate([np.array([root], np.int64), contents["mtime"][own]])

        def spans(links: npt.NDArray[np.uint32]) -> tuple[Int64Array, Int64Array]:
            return contents["place"][links], contents["size"][links]

        tree, entries = arrange(named, mtimes, spans, self.shown)
        found = Contents(tree, contents["place"][entries], contents["size"][entries])
        ffi.release(self.native)
        return found

    def _named(self, contents: npt.NDArray[Any]) -> Named:
        """Return the names, after giving content that lost its own name to the first of its other names."""
        columns, count = self._columns, self._columns.entries
        parents, owners = (self._array(column, count, np.uint32) for column in (columns.parents, columns.owners))
        if (replaced := parents == 2**32 - 1).any():
            left = np.flatnonzero(~replaced)
            heirs = np.arange(count, dtype=np.uint32)
            heirs[owners[left[::-1]]] = left[::-1]
            contents[heirs[owners[left]]] = contents[owners[left]]
            owners[left] = heirs[owners[left]]
        contents["mode"] = contents["mode"][owners]
        contents["mode"][replaced] = 0
        offsets = self._array(columns.name_offsets, count + 1, np.uint32)
        names = self._array(columns.names, int(offsets[-1]), np.uint8)
        targets = self._array(columns.targets, columns.targets_size, np.uint8)
        return Named(columns.root.mode or DIRECTORY, parents, owners, contents["mode"], offsets, names, targets)

    @staticmethod
    def _array(pointer: Any, count: int, dtype: Any) -> npt.NDArray[Any]:
        size = count * np.dtype(dtype).itemsize
        return np.frombuffer(ffi.buffer(pointer, size), dtype) if size else np.empty(0, dtype)


def _text(path: bytes, size: int) -> str:
    """Format a path of a size, of which the beginning is given, for messages, in one line of limited length."""
    return repr(os.fsdecode(path[:200]) + ("…" if size > 200 else ""))
