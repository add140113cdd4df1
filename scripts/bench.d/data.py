"""The test data: made once, kept in the scratch folder, and the same on every machine (fixed seeds)."""

from __future__ import annotations

import os
import pickle
import shutil
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from figures import progress

import fffs
from fffs.files.atomic import AtomicFile
from fffs.packing.pack_file import PackFile
from fffs.records.index import BlockChecksums
from fffs.tree import packed_pickle, trailer
from fffs.tree.builder import DIRECTORY, FILE, TreeBuilder, build_tree

MEAN = 112 * 1024
RUN = 1 << 16
FOLDER_FILES = 1000  # files in each folder of the packed folder


def kept(path: Path, make: Callable[[Path], None]) -> Path:
    """Return path. If missing, it is made under another name and renamed, so that it is always complete."""
    if not path.exists():
        unfinished = path.with_name(f"unfinished-{path.name}")
        shutil.rmtree(unfinished, ignore_errors=True)
        make(unfinished)
        unfinished.rename(path)
        os.sync()  # otherwise the next measurement would include the write-back
        progress("")
    return path


def photo_sizes(count: int) -> np.ndarray:
    """Return sizes like those of photos: log-normal, 112 KiB on average."""
    sizes = np.random.default_rng(112).lognormal(0, 0.5, count)
    return (sizes * (MEAN / sizes.mean())).astype(np.int64)


def _contents(sizes: np.ndarray, what: str) -> Iterator[memoryview]:
    """Yield a record of each size, a slice of random bytes."""
    generator = np.random.default_rng(7)
    source = memoryview(generator.bytes((64 << 20) + int(sizes.max())))
    starts = generator.integers(0, 64 << 20, len(sizes))
    for k, (start, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
        if k % 1000 == 0:
            progress(f"making {what}: {k:,} of {len(sizes):,}")
        yield source[start : start + size]


def _records(path: Path, sizes: np.ndarray) -> None:
    with fffs.FileWriter(path, len(sizes)) as writer:
        for content in _contents(sizes, path.name.removeprefix("unfinished-")):
            writer.write_one(content)


def large_records(scratch: Path, count: int) -> Path:
    """Return a record file of ``count`` records of 112 KiB on average."""
    return kept(scratch / f"large-{count}.ffr", lambda path: _records(path, photo_sizes(count)))


def equal_records(scratch: Path, count: int, size: int) -> Path:
    """Return a record file of ``count`` records of ``size`` bytes."""
    return kept(scratch / f"equal-{count}-{size}.ffr", lambda path: _records(path, np.full(count, size)))


def small_records(scratch: Path, count: int) -> Path:
    """Return a record file of ``count`` records of 1 KiB."""
    return kept(scratch / f"small-{count}.ffr", lambda path: _records(path, np.full(count, 1024)))


def photo_folder(scratch: Path, count: int) -> Path:
    """Return a folder of ``count`` files of 112 KiB on average, with 100 files per subfolder."""

    def make(folder: Path) -> None:
        for k, content in enumerate(_contents(photo_sizes(count), "folder")):
            subfolder = folder / f"{k // 100:04}"
            if k % 100 == 0:
                subfolder.mkdir(parents=True)
            (subfolder / f"{k:06}.jpg").write_bytes(content)

    return kept(scratch / f"folder-{count}", make)


def tiny_folder(scratch: Path, folders: int, files: int) -> Path:
    """Return a folder of so many folders, each with so many files of 16 bytes."""

    def make(folder: Path) -> None:
        for k in range(folders):
            progress(f"making {folder.name}: {k:,} of {folders:,} folders")
            below = folder / f"{k:04}"
            below.mkdir(parents=True)
            for i in range(files):
                (below / f"{i:07}.txt").write_bytes(b"0123456789abcdef")

    return kept(scratch / f"tiny-{folders}x{files}", make)


def _names(count: int) -> list[tuple[str, list[str]]]:
    folders = range(count // FOLDER_FILES)
    return [(f"{k:04}", [f"{i:08}.txt" for i in range(k * FOLDER_FILES, (k + 1) * FOLDER_FILES)]) for k in folders]


def _our_tree(count: int) -> bytes:
    builder = TreeBuilder()
    for folder, names in _names(count):
        node = builder.add_directory(0, folder.encode())
        for name in names:
            builder.add_file(node, name.encode(), int(name[:8]))
    tree = builder.build(count, "generated")
    blocks = BlockChecksums(np.empty(0, np.uint32), np.zeros(1, np.uint64), np.empty(0, np.uint32))
    return packed_pickle.encode(tree).tobytes() + b"".join(trailer.encode(tree, blocks))


def _ffrecords_tree(count: int) -> bytes:
    tree = OrderedDict(
        (folder, OrderedDict((name, int(name[:8])) for name in names)) for folder, names in _names(count)
    )
    return packed_pickle.MAGIC + pickle.dumps(tree, protocol=4)


def packed_folder(scratch: Path, count: int, with_trailer: bool) -> Path:
    """Return a packed folder of ``count`` files of 16 to 64 bytes, with a trailer or as ffrecord writes it."""

    def make(path: Path) -> None:
        sizes = np.random.default_rng(16).integers(16, 65, count)
        with fffs.FileWriter(path, count + 1) as writer:
            for content in _contents(sizes, path.name.removeprefix("unfinished-")):
                writer.write_one(content)
            progress(f"making {path.name.removeprefix('unfinished-')}: the tree of names")
            writer.write_one(_our_tree(count) if with_trailer else _ffrecords_tree(count))

    name = "packed" if with_trailer else "packed-by-ffrecord"
    return kept(scratch / f"{name}-{count}.ffr", make)


def tiny_pack(path: Path, count: int, first: int = 0, align: bool = False) -> Path:
    """Return a packed folder of ``count`` files of 16 bytes, in folders of 1,000, numbered from ``first`` on."""

    def make(unfinished: Path) -> None:
        progress(f"making {path.name}")
        folders = -(-count // FOLDER_FILES)
        names = [np.char.mod("%06d", np.arange(first, first + folders)), np.char.mod("%07d.txt", np.arange(count))]
        mode = np.full(1 + folders + count, FILE, np.uint16)
        mode[: 1 + folders] = DIRECTORY
        ref = np.zeros(len(mode), np.int64)
        ref[1 + folders :] = np.arange(count)
        lengths = np.repeat([6, 11], [folders, count])
        tree = build_tree(
            parents=np.concatenate([np.zeros(folders, np.int64), 1 + np.arange(count) // FOLDER_FILES]),
            nodes=np.arange(1, len(mode)),
            name_offsets=np.concatenate([[0], np.cumsum(lengths)]),
            names=np.concatenate([array.astype("S").view(np.uint8) for array in names]),
            mode=mode,
            mtime=np.full(len(mode), 10**18),
            ref=ref,
            count=np.zeros(len(mode), np.uint32),
            targets=np.empty(0, np.uint8),
            records=count,
            source=path.name,
        )
        with AtomicFile(str(unfinished)) as file:
            pack = PackFile(file, np.full(count, 16), align)
            for begin in range(0, count, RUN):
                records = np.arange(begin, min(begin + RUN, count), dtype=np.uint32)
                pack.put_files(records, np.arange(len(records)) * 16, np.zeros(len(records) * 16, np.uint8))
            pack.finish(tree)
            file.commit()

    return kept(path, make)
