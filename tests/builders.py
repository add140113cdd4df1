"""Makes valid and invalid files for tests, and describes folders for comparison.

This module does not use fffs. It encodes files as the formats define them and computes every checksum, so that only
the change that a test makes is wrong.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import shutil
import stat
import struct
import subprocess
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fffs

Array = npt.NDArray[Any]

MAGIC = b"piouhjgbr"
MIB = 1 << 20

# ---------------------------------------------------------------- record files


def header(checksums: Sequence[int], offsets: Sequence[int], n: int | None = None, crc: int | None = None) -> bytes:
    """Return the metadata of a record file; n and crc may be wrong."""
    count = len(checksums) if n is None else n
    body = struct.pack(f"<q{len(checksums)}I{len(offsets)}q", count, *checksums, *offsets)
    return struct.pack("<I", zlib.crc32(body) if crc is None else crc) + body


def record_file(records: Sequence[bytes]) -> bytes:
    """Return a valid record file."""
    offsets, at = [], 12 + 12 * len(records)
    for record in records:
        offsets.append(at)
        at += len(record)
    return header([zlib.crc32(record) for record in records], offsets) + b"".join(records)


def split_records(data: bytes) -> list[bytes]:
    """Return the records of a valid record file."""
    (n,) = struct.unpack_from("<q", data, 4)
    offsets = [*struct.unpack_from(f"<{n}q", data, 12 + 4 * n), len(data)]
    return [data[offsets[i] : offsets[i + 1]] for i in range(n)]


# ---------------------------------------------------------------- trailers

FOOTER = struct.Struct("<8sII7QII")
NODES = {"mtime": "<i8", "nlink": "<u4", "ref": "<u4", "count": "<u4", "parent": "<u4", "mode": "<u2"}
REST = {
    "name_offsets": "<u4",
    "entry_nodes": "<u4",
    "names": "u1",
    "targets": "u1",
    "big_records": "<u4",
    "big_first_blocks": "<u8",
    "block_checksums": "<u4",
}
DTYPES = NODES | REST
COUNTS = ("entries", "nodes", "names", "targets", "bigs", "blocks")


@dataclass
class Trailer:
    """A decoded trailer. ``encode`` encodes it with right checksums, whatever the arrays hold."""

    arrays: dict[str, Array]
    version: int = 1
    flags: int = 0
    magic: bytes = b"fffsTREE"
    counts: dict[str, int] = field(default_factory=dict)  # wrong counts for the footer
    size: int | None = None  # a wrong size of the body
    body_crc: int | None = None
    footer_crc: int | None = None

    def true_counts(self) -> dict[str, int]:
        arrays = self.arrays
        lengths = [len(arrays[name]) for name in ("entry_nodes", "mode", "names", "targets", "big_records")]
        return dict(zip(COUNTS, [*lengths, len(arrays["block_checksums"])], strict=True))

    def encode(self) -> bytes:
        body = b""
        for name, dtype in DTYPES.items():
            data = np.ascontiguousarray(self.arrays[name]).astype(dtype).tobytes()
            body += data + bytes(-len(data) % 8)
        counts = self.true_counts() | self.counts
        size = len(body) if self.size is None else self.size
        crc = zlib.crc32(body) if self.body_crc is None else self.body_crc
        footer = FOOTER.pack(self.magic, self.version, self.flags, size, *counts.values(), crc, 0)[:-4]
        return body + footer + struct.pack("<I", zlib.crc32(footer) if self.footer_crc is None else self.footer_crc)

    @classmethod
    def parse(cls, data: bytes) -> Trailer:
        """Return the trailer at the end of data."""
        magic, version, flags, size, *numbers, crc, footer_crc = FOOTER.unpack(data[-FOOTER.size :])
        body = data[-FOOTER.size - size : -FOOTER.size]
        assert magic == b"fffsTREE"
        assert zlib.crc32(body) == crc
        assert zlib.crc32(data[-FOOTER.size : -4]) == footer_crc
        entries, nodes, names, targets, bigs, blocks = numbers
        lengths = dict.fromkeys(NODES, nodes) | dict(
            zip(REST, (entries + 1, entries, names, targets, bigs, bigs + 1, blocks), strict=True)
        )
        arrays, at = {}, 0
        for name, dtype in DTYPES.items():
            arrays[name] = np.frombuffer(body, dtype, lengths[name], at).copy()
            at += (arrays[name].nbytes + 7) // 8 * 8
        assert at == size
        return cls(arrays, version, flags)


@dataclass
class Pack:
    """A decoded packed folder."""

    records: list[bytes]  # without the last one, the tree
    pickle: bytes
    trailer: Trailer | None = None

    def build(self) -> bytes:
        """Return the file, with right checksums."""
        tail = self.trailer.encode() if self.trailer else b""
        return record_file([*self.records, MAGIC + self.pickle + tail])

    @classmethod
    def parse(cls, data: bytes) -> Pack:
        *records, last = split_records(data)
        assert last.startswith(MAGIC)
        stream = io.BytesIO(last[len(MAGIC) :])
        OnlyOrderedDict(stream).load()
        end = len(MAGIC) + stream.tell()
        trailer = Trailer.parse(last) if end < len(last) else None
        return cls(records, last[len(MAGIC) : end], trailer)


class OnlyOrderedDict(pickle.Unpickler):
    """An independent reader of the pickle of a packed folder: Python's own, with a single allowed global."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) != ("collections", "OrderedDict"):
            raise pickle.UnpicklingError(f"{module}.{name}")
        return OrderedDict


def unpickle(data: bytes) -> Any:
    """Return the tree that ffrecord reads from the last record of a packed folder (without the magic bytes)."""
    return OnlyOrderedDict(io.BytesIO(data)).load()


# ---------------------------------------------------------------- pickles by opcode

PROTO = b"\x80\x04"
ORDERED_DICT = b"ccollections\nOrderedDict\n"
NEW = ORDERED_DICT + b")R"
STOP = b"."


def text(name: str | bytes) -> bytes:
    """Pickle a str of any length; bytes are its UTF-8, valid or not."""
    data = name.encode("utf-8", "surrogatepass") if isinstance(name, str) else name
    return b"X" + struct.pack("<I", len(data)) + data


def number(value: int) -> bytes:
    return b"K" + bytes([value]) if value < 256 else b"J" + struct.pack("<i", value)


def dictionary(*items: bytes) -> bytes:
    """Pickle an OrderedDict of pickled keys and values."""
    return NEW + b"(" + b"".join(items) + b"u"


def whole(value: bytes) -> bytes:
    """Return a complete pickle of a pickled value."""
    return PROTO + value + STOP


# ---------------------------------------------------------------- describing folders

Snapshot = dict[bytes, tuple[Any, ...]]


def snapshot(folder: str | bytes | os.PathLike[Any]) -> Snapshot:
    """Return everything that a packed folder stores: path -> mode, time, content or target, and all its names."""
    root = os.fsencode(folder)
    found: dict[bytes, os.stat_result] = {b"": os.stat(root)}
    stack = [b""]
    while stack:
        prefix = stack.pop()
        for name in os.listdir(os.path.join(root, prefix)):
            path = os.path.join(prefix, name)
            found[path] = os.lstat(os.path.join(root, path))
            if stat.S_ISDIR(found[path].st_mode):
                stack.append(path)
    names: dict[int, list[bytes]] = {}
    for path, status in found.items():
        names.setdefault(status.st_ino, []).append(path)
    result: Snapshot = {}
    for path, status in found.items():
        full = os.path.join(root, path)
        content: bytes | None = None
        if stat.S_ISLNK(status.st_mode):
            content = os.readlink(full)
        elif stat.S_ISREG(status.st_mode):
            content = Path(os.fsdecode(full)).read_bytes()
        result[path] = (oct(status.st_mode), status.st_mtime_ns, content, tuple(sorted(names[status.st_ino])))
    return result


def contents(folder: str | bytes | os.PathLike[Any]) -> dict[bytes, bytes | None]:
    """Return path -> content or target, and None for a folder."""
    return {path: entry[2] for path, entry in snapshot(folder).items() if path}


def differences(a: Snapshot, b: Snapshot) -> dict[bytes, tuple[Any, Any]]:
    """Return the differences, shortened for the report of a failed test."""

    def brief(entry: tuple[Any, ...] | None) -> Any:
        return entry and (*entry[:2], entry[2] and (len(entry[2]), zlib.crc32(entry[2])), entry[3])

    return {
        path: (brief(a.get(path)), brief(b.get(path))) for path in a.keys() | b.keys() if a.get(path) != b.get(path)
    }


# ---------------------------------------------------------------- users and disks


@contextlib.contextmanager
def as_nobody(folder: Path) -> Iterator[None]:
    """Run the block as an unprivileged user in a folder of its own, which is the current one: use relative paths.

    If the tests do not run as root, the user stays the same.
    """
    before = Path.cwd()
    os.chdir(folder)
    root = os.geteuid() == 0
    if root:
        os.chown(folder, 65534, 65534)
        groups = os.getgroups()
        os.setgroups([])
        os.setegid(65534)
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
            os.setegid(0)
            os.setgroups(groups)
        os.chdir(before)


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """Mount a file system of this size on a new folder."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("no tmpfs can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextlib.contextmanager
def btrfs(folder: Path) -> Iterator[Path]:
    """Mount a new Btrfs on a new folder."""
    folder.mkdir()
    image = folder.with_name(f"{folder.name}.image")
    image.touch()
    os.truncate(image, 120 << 20)
    commands = (["mkfs.btrfs", "-q", image], ["mount", "-o", "loop", image, folder])
    if os.geteuid() != 0 or shutil.which("mkfs.btrfs") is None:
        pytest.skip("no Btrfs can be made here")
    if any(subprocess.run(command, capture_output=True, check=False).returncode for command in commands):
        pytest.skip("no Btrfs can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@contextlib.contextmanager
def bound(source: Path, target: Path) -> Iterator[None]:
    """Bind a file or folder to another one."""
    command = ["mount", "--bind", str(source), str(target)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("nothing can be bound here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(target)], check=True)


def stretched(size: int, seed: int = 1) -> bytes:
    """Return bytes that do not repeat within a block, quickly."""
    return np.random.Generator(np.random.PCG64(seed)).bytes(size)


Progress = Callable[[int, int], None]


def once(action: Callable[[], object]) -> Progress:
    """Return a progress callback that calls ``action`` once."""
    done: list[bool] = []

    def progress(_done: int, _total: int) -> None:
        if not done:
            done.append(True)
            action()

    return progress


def pack_small_folder(place: Path) -> Path:
    """Pack a folder with one small file, both in ``place``. Returns the packed file."""
    (place / "folder").mkdir()
    (place / "folder" / "file").write_text("content")
    fffs.pack_folder(place / "folder", place / "p.ffr")
    return place / "p.ffr"


class NoArray:
    """What numpy cannot make an array of, as a tensor of torch that needs a gradient."""

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad")

    def __repr__(self) -> str:
        return "NoArray()"
