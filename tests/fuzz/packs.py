"""Packed folders, encoded as FORMATS.md defines them, without fffs; for seeds and bad files."""

from __future__ import annotations

import os
import stat
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from builders import DTYPES, FOOTER, MIB, Pack, Trailer, unpickle

MTIME = 1_600_000_000_123_456_789
LINKS_MAX, STEPS_MAX = 40, 4095


@dataclass(frozen=True)
class Link:
    """A symbolic link."""

    target: bytes


@dataclass(frozen=True)
class Same:
    """A hard link to the file at a path."""

    path: bytes


# Names -> contents (bytes, or a record number in a tree without contents), folders and links.
Folder = dict[bytes, Any]


def follow(folder: Folder, path: bytes) -> Any:
    """Return the target of a path inside a folder, following links; None if it does not exist."""
    trail: list[Any] = [folder]
    parts = [(part, False) for part in reversed(path.split(b"/"))]
    links = steps = 0
    while parts:
        part, in_target = parts.pop()
        steps += 1
        if steps > STEPS_MAX:
            return None
        if part in (b"", b"."):
            continue
        if not isinstance(trail[-1], dict):
            return None
        if part == b"..":
            if not in_target or len(trail) == 1:
                return None
            trail.pop()
            continue
        if part not in trail[-1]:
            return None
        found = trail[-1][part]
        if isinstance(found, Link):
            links += 1
            if links > LINKS_MAX or found.target.startswith(b"/"):
                return None
            parts += [(part, True) for part in reversed(found.target.split(b"/"))]
        else:
            trail.append(found)
    return trail[-1]


def flat(folder: Folder, root: Folder | None = None) -> Iterator[tuple[bytes, Any]]:
    """Yield (path, value) of everything in a folder, depth first, names sorted by bytes.

    root: omit entries that ffrecord does not see, and replace links to files by their targets inside root.
    """
    stack = [(b"", iter(sorted(folder.items())))]
    while stack:
        prefix, items = stack[-1]
        for name, value in items:
            if root is not None and isinstance(value, Link):
                value = follow(root, prefix + name)
                if value is None or isinstance(value, dict):
                    continue
            yield prefix + name, value
            if isinstance(value, dict):
                stack.append((prefix + name + b"/", iter(sorted(value.items()))))
                break
        else:
            stack.pop()


# ---------------------------------------------------------------- the tree for ffrecord


def _text(name: bytes) -> bytes:
    data = os.fsdecode(name).encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(data)) + data


def _number(value: int) -> bytes:
    if value < 256:
        return b"K" + bytes([value])
    return b"M" + struct.pack("<H", value) if value < 65536 else b"J" + struct.pack("<i", value)


def pickled(folder: Folder) -> bytes:
    """Return the pickle of a tree of record numbers as fffs writes it: protocol 2, memo only for the constructor."""
    out = b"\x80\x02ccollections\nOrderedDict\nq\x00)R("
    depth = 1
    for path, value in flat(folder, folder):
        out += b"u" * (depth - 1 - path.count(b"/"))
        depth = path.count(b"/") + 1
        out += _text(path.rpartition(b"/")[2])
        if isinstance(value, dict):
            out += b"h\x00)R("
            depth += 1
        else:
            out += _number(value)
    return out + b"u" * depth + b"."


def unpickled(pickle: bytes) -> dict[bytes, int | None]:
    """Return path -> record number, and None for a folder, as Python unpickles it."""
    found: dict[bytes, int | None] = {}
    stack = [(b"", unpickle(pickle))]
    while stack:
        prefix, items = stack.pop()
        for name, value in items.items():
            path = prefix + os.fsencode(name)
            found[path] = None if isinstance(value, dict) else value
            if isinstance(value, dict):
                stack.append((path + b"/", value))
    return found


# ---------------------------------------------------------------- the tree for fffs


@dataclass
class _Node:
    mode: int
    ref: int = 0
    count: int = 0
    parent: int = 0
    nlink: int = 1


@dataclass
class _Layout:
    """Collects the arrays of a trailer, nodes breadth first."""

    nodes: list[_Node] = field(default_factory=lambda: [_Node(stat.S_IFDIR | 0o755, nlink=2)])
    entries: list[tuple[bytes, int]] = field(default_factory=list)
    targets: bytes = b""
    files: dict[int, int] = field(default_factory=dict)  # record -> node

    def _add(self, node: _Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def add(self, parent: int, value: Any) -> int:
        """Add a value in a folder. Returns its node."""
        if isinstance(value, dict):
            self.nodes[parent].nlink += 1
            return self._add(_Node(stat.S_IFDIR | 0o755, parent=parent, nlink=2))
        if isinstance(value, Link):
            self.targets += value.target
            at = len(self.targets) - len(value.target)
            return self._add(_Node(stat.S_IFLNK | 0o777, at, len(value.target)))
        if value in self.files:
            self.nodes[self.files[value]].nlink += 1
        else:
            self.files[value] = self._add(_Node(stat.S_IFREG | 0o644, value))
        return self.files[value]


def trailer(folder: Folder, records: list[bytes]) -> Trailer:
    """Return the trailer of a tree of record numbers."""
    layout = _Layout()
    queue = [(0, folder)]
    for node, items in queue:
        layout.nodes[node].ref, layout.nodes[node].count = len(layout.entries), len(items)
        for name, value in sorted(items.items()):
            child = layout.add(node, value)
            layout.entries.append((name, child))
            if isinstance(value, dict):
                queue.append((child, value))
    bigs = [k for k, data in enumerate(records) if len(data) > MIB]
    blocks = [[zlib.crc32(records[k][i : i + MIB]) for i in range(0, len(records[k]), MIB)] for k in bigs]
    columns: dict[str, Any] = {
        name: [getattr(node, name) for node in layout.nodes] for name in ("nlink", "ref", "count", "parent", "mode")
    }
    columns |= {
        "mtime": [MTIME + k for k in range(len(layout.nodes))],
        "name_offsets": np.cumsum([0, *(len(name) for name, _ in layout.entries)]),
        "entry_nodes": [node for _, node in layout.entries],
        "names": list(b"".join(name for name, _ in layout.entries)),
        "targets": list(layout.targets),
        "big_records": bigs,
        "big_first_blocks": np.cumsum([0, *map(len, blocks)]),
        "block_checksums": [crc for one in blocks for crc in one],
    }
    return Trailer({name: np.array(columns[name], dtype) for name, dtype in DTYPES.items()})


def numbered(folder: Folder) -> tuple[Folder, list[bytes]]:
    """Replace the contents in a tree by record numbers. Returns the tree and the records."""
    records: list[bytes] = []
    numbers: dict[bytes, int] = {}
    for path, value in flat(folder):
        if isinstance(value, bytes):
            numbers[path] = len(records)
            records.append(value)

    tree: Folder = {}
    stack = [(b"", folder, tree)]
    while stack:
        prefix, items, result = stack.pop()
        for name, value in items.items():
            if isinstance(value, dict):
                result[name] = {}
                stack.append((prefix + name + b"/", value, result[name]))
            elif isinstance(value, Link):
                result[name] = value
            else:
                result[name] = numbers[value.path if isinstance(value, Same) else prefix + name]
    return tree, records


def pack(folder: Folder, lossless: bool = True) -> Pack:
    """Pack a folder as fffs does; or, not lossless, only with the pickle, as ffrecord does."""
    tree, records = numbered(folder)
    return Pack(records, pickled(tree), trailer(tree, records) if lossless else None)


# ---------------------------------------------------------------- checksums of changed files


def with_checksums(data: bytes, trailer_too: bool = False) -> bytes:
    """Return a file with right checksums, as far as its tables are usable; trailer_too: also in a trailer."""
    out = bytearray(data)
    if trailer_too and len(out) >= FOOTER.size:
        size = min(struct.unpack_from("<Q", out, len(out) - FOOTER.size + 16)[0], len(out) - FOOTER.size)
        end = len(out) - FOOTER.size
        struct.pack_into("<I", out, len(out) - 8, zlib.crc32(out[end - size : end]))
        struct.pack_into("<I", out, len(out) - 4, zlib.crc32(out[end:-4]))
    if len(out) < 12:
        return bytes(out)
    (n,) = struct.unpack_from("<q", out, 4)
    if not 0 <= n <= (len(out) - 12) // 12:
        return bytes(out)
    bounds = [*struct.unpack_from(f"<{n}q", out, 12 + 4 * n), len(out)]
    for k in range(n):
        if 12 + 12 * n <= bounds[k] <= bounds[k + 1] <= len(out):
            struct.pack_into("<I", out, 12 + 4 * k, zlib.crc32(out[bounds[k] : bounds[k + 1]]))
    struct.pack_into("<I", out, 0, zlib.crc32(out[4 : 12 + 12 * n]))
    return bytes(out)


# ---------------------------------------------------------------- folders for seeds


def small() -> Folder:
    """Return a folder with a little of everything: nested and empty folders, all kinds of links, unusual names."""
    return {
        b"a": b"content of a",
        b"b.txt": b"bb" * 40,
        b"empty": b"",
        b"folder": {
            b"again": Same(b"a"),
            b"inner": {b"deep": b"deep content", b"up": Link(b"../../a"), b"void": {}},
            b"one": b"1",
            b"to-b": Link(b"../b.txt"),
        },
        b"loop": Link(b"loop"),
        b"nowhere": Link(b"not/there"),
        b"outside": Link(b"/etc/passwd"),
        b"to-folder": Link(b"folder"),
        b"\xc3\xa9": b"in UTF-8",
        b"\xe9": b"in Latin-1",
    }


def flat_files(count: int) -> Folder:
    """Return a folder of this many small files."""
    return {b"%04d" % k: b"file %d" % k for k in range(count)}


def chain(depth: int, name: bytes = b"d", file: bytes = b"file") -> Folder:
    """Return a file in this many nested folders."""
    folder: Folder = {file: b"at the bottom"}
    for _ in range(depth):
        folder = {name: folder}
    return folder


def long_path(length: int) -> Folder:
    """Return a file whose path has ``length`` bytes, about 4095."""
    return chain(31, b"d" * 131, b"f" * (length - 31 * 132))
