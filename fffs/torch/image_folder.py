"""The samples of an image folder: which files of a tree are samples, of which class, and in which order."""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fffs.tree.tree import ROOT, Int64Array, Tree, UInt8Array, UInt32Array

LOWER: UInt8Array = np.frombuffer(bytes(range(256)).lower(), np.uint8)  # of ASCII only


class Folder(NamedTuple):
    """A folder below a class: its path in the pack, its node and the number of its class."""

    path: bytes
    node: int
    target: int


@dataclass(frozen=True, eq=False)
class Samples:
    """The samples of a tree in the order of torchvision's ImageFolder: by class, folder and name, compared as text.

    Immutable; may be used from any thread. Per sample: ``records`` and ``targets`` (class numbers), arrays of int64.
    """

    classes: list[str]
    records: Int64Array
    targets: Int64Array
    _tree: Tree
    _folders: list[Folder]
    _ends: Int64Array  # of each folder's samples
    _entries: UInt32Array  # of each sample

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """Yield (path in the folder, class number) of each sample."""
        begin = 0
        for folder, end in zip(self._folders, self._ends.tolist(), strict=True):
            for entry in self._entries[begin:end].tolist():
                yield os.fsdecode(folder.path + b"/" + self._tree.name(entry)), folder.target
            begin = end


def find_samples(tree: Tree, endings: Sequence[str]) -> Samples:
    """Find the files whose names, in lower case, end with one of endings (none: all) in the subfolders of the root.

    A link counts as the file that it leads to; links to folders are not followed. Python runs once for each folder and
    link, not for each file.
    """
    classes = sorted(os.fsdecode(name) for name, node in tree.entries(ROOT) if tree.is_dir(node))
    folders = _class_folders(tree, classes)
    entries, ends = _entries_in_order(tree, [folder.node for folder in folders])
    nodes = tree.entry_nodes[entries]
    kinds = tree.mode[nodes] & np.uint16(0o170000)
    kept = kinds == stat.S_IFREG
    for at in np.flatnonzero(kinds == stat.S_IFLNK).tolist():
        file = tree.follow(_path(tree, folders, ends, entries, at))
        if file is not None and tree.is_file(file):
            kept[at], nodes[at] = True, file
    if endings:
        kept &= _end_with(tree, folders, ends, entries, endings)
    before = np.concatenate(([0], np.cumsum(kept)))
    chosen_ends = before[ends]
    targets = np.array([folder.target for folder in folders], np.int64)
    return Samples(
        classes,
        tree.ref[nodes[kept]].astype(np.int64),
        np.repeat(targets, np.diff(chosen_ends, prepend=0)),
        tree,
        folders,
        chosen_ends,
        entries[kept],
    )


def _class_folders(tree: Tree, classes: list[str]) -> list[Folder]:
    """Return each class's folder and those below it, by class and path."""
    below: dict[int, list[tuple[bytes, int]]] = defaultdict(list)
    for entry in np.flatnonzero((tree.kinds == stat.S_IFDIR)[tree.entry_nodes]).tolist():
        node = int(tree.entry_nodes[entry])
        below[int(tree.parent[node])].append((tree.name(entry), node))
    found: list[Folder] = []
    for target, name in enumerate(classes):
        start = os.fsencode(name)
        inner = [Folder(start, tree.find(start), target)]
        for folder in inner:  # which grows
            inner += [Folder(folder.path + b"/" + part, node, target) for part, node in below[folder.node]]
        found += sorted(inner, key=lambda folder: os.fsdecode(folder.path))
    return found


def _entries_in_order(tree: Tree, nodes: list[int]) -> tuple[UInt32Array, Int64Array]:
    """Return the entries of some folders, one folder after the other, and where each one's end."""
    first, count = tree.ref[nodes].astype(np.int64), tree.count[nodes].astype(np.int64)
    ends = np.cumsum(count, dtype=np.int64)
    entries = np.repeat((first - ends + count).astype(np.uint32), count)  # modulo 2**32, as the sum
    entries += np.arange(len(entries), dtype=np.uint32)
    for at in range(len(nodes)):
        low, high = int(first[at]), int(first[at] + count[at])
        if not _sorted_as_text(tree, low, high):
            by_text = sorted(range(low, high), key=lambda entry: os.fsdecode(tree.name(entry)))
            entries[int(ends[at]) - len(by_text) : int(ends[at])] = by_text
    return entries, ends


def _sorted_as_text(tree: Tree, low: int, high: int) -> bool:
    """Return whether the names of these entries, which are sorted by bytes, are surely sorted as text too.

    Valid UTF-8 sorts by its bytes as by its code points. Other bytes decode to surrogates, which sort below the
    characters from U+E000 on.
    """
    offsets = tree.name_offsets[low : high + 1]
    names = tree.names[int(offsets[0]) : int(offsets[-1])].tobytes()
    if names.isascii():
        return True
    try:
        names.decode()
    except UnicodeDecodeError:
        return False
    # The end of one name and the beginning of the next can be a character only together.
    return not bool(np.any(tree.names[offsets[:-1]] & 0xC0 == 0x80))


def _path(tree: Tree, folders: list[Folder], ends: Int64Array, entries: UInt32Array, at: int) -> bytes:
    """Return the path of the entry at a position of entries."""
    return folders[int(np.searchsorted(ends, at, "right"))].path + b"/" + tree.name(int(entries[at]))


def _end_with(
    tree: Tree, folders: list[Folder], ends: Int64Array, entries: UInt32Array, endings: Sequence[str]
) -> npt.NDArray[np.bool_]:
    """Return for each entry whether its path, as text in lower case, ends with one of endings."""
    start, end = tree.name_offsets[entries], tree.name_offsets[entries + np.uint32(1)]
    found = np.zeros(len(entries), np.bool_)
    unclear = np.zeros(len(entries), np.bool_)
    for ending in endings:
        if not ending.isascii() or "/" in ending:
            unclear[:] = True
            continue
        size = len(ending)
        # A shorter name does not match: a "/" is before it.
        at = np.flatnonzero(end - start >= size)
        # Backwards: up to a byte that is not ASCII, bytes are characters.
        for k, byte in enumerate(reversed(ending.encode())):
            tail = tree.names[end[at] - np.uint32(k + 1)]
            unclear[at[tail >= 0x80]] = True  # such as the Kelvin sign, whose lower case is "k"
            at = at[LOWER[tail] == byte]
        found[at] = True
    for k in np.flatnonzero(unclear & ~found).tolist():
        found[k] = os.fsdecode(_path(tree, folders, ends, entries, k)).lower().endswith(tuple(endings))
    return found
