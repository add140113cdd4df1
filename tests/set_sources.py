"""Folders that are packed into parts, and what such a set must be."""

from __future__ import annotations

import os
import random
from pathlib import Path

from builders import contents, differences, snapshot

import fffs

# Names whose order as text differs from that of paths, and others that sort oddly or are not UTF-8.
ODD = (b"a", b"a-b", b"a.c", b"a0", b"A", b"b", b"\x01x", b"z z", b"a\nb", b"\xff\xfe", b"\xc3\xa4", b"-rf")


def grow(folder: Path | bytes, seed: int, depth: int = 3) -> None:
    """Fill a folder with files, folders and links whose names are odd."""
    make = random.Random(seed)
    root = os.fsencode(folder)
    os.makedirs(root, exist_ok=True)
    for name in make.sample(ODD, make.randint(1, len(ODD))):
        path = os.path.join(root, name)
        kind = make.random()
        if depth and kind < 0.35:
            grow(path, make.randint(0, 10**9), depth - 1)
        elif kind < 0.4:
            os.mkdir(path)
        elif kind < 0.5:
            os.symlink(os.path.join(b"..", name), path)
        else:
            Path(os.fsdecode(path)).write_bytes(make.randbytes(make.choice((0, 1, 100, 5000))))
            os.utime(path, ns=(0, make.randint(0, 10**18)))
            os.chmod(path, make.choice((0o644, 0o600, 0o755)))


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the names and bytes of the parts."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def assert_same(source: Path, target: Path, copy: Path) -> None:
    """The set, unpacked, must equal its source."""
    fffs.unpack(target, copy)
    assert not differences(snapshot(source), snapshot(copy))


def assert_same_contents(source: Path, target: Path, copy: Path) -> None:
    """As ``assert_same``, but for modes, times and hard links."""
    fffs.unpack(target, copy)
    assert contents(source) == contents(copy)


def small_folder(parent: Path) -> Path:
    """Make a folder with four folders of five files."""
    folder = parent / "photos"
    for k in range(4):
        (folder / f"day{k}").mkdir(parents=True)
        for j in range(5):
            (folder / f"day{k}" / f"{j}.jpg").write_bytes(bytes([k, j]) * 2000)
    return folder


def files_in_pack(pack: Path | str) -> dict[str, bytes]:
    """Return the paths and bytes of the files of a pack or set."""
    with fffs.PackedFolder(pack) as packed:
        paths = [path for path in packed.list("", recursive=True) if packed.is_file(path)]
        return {path: bytes(packed.read_one(path)) for path in paths}
