"""verify: compares every byte of a source with its checksums."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fffs.base.jobs import Progress
from fffs.base.numbers import divide
from fffs.errors import ChecksumError, ReadError, SourceChangedError, TruncatedError
from fffs.files.file import UInt8Array
from fffs.layouts.packed import load as load_packed
from fffs.layouts.view import TreeView
from fffs.native.checksums import CHECK_NONE, crc32_combine
from fffs.native.engine import BLOCK
from fffs.objects.names import is_remote
from fffs.records.source_file import SourceFile
from fffs.tree import packed_pickle

BATCH_RECORDS = 4096
BATCH_BYTES = 256 * BLOCK


@dataclass(frozen=True)
class BadRecord:
    """A damaged or unreadable record. ``number`` counts through all files of the source, ``record`` in its file."""

    source: str
    record: int
    number: int
    offset: int
    name: str | None
    problem: str


def verify(source: TreeView, progress: Progress | None = None) -> list[BadRecord]:
    """Read every record of a source, in bounded memory, and return the bad ones. Raises ReadError if a store fails, and
    SourceChangedError if a file was replaced and no record is bad.

    For packed folders, also check that ffrecord and fffs see the same tree, and that block checksums match records'.
    """
    failures: list[tuple[int, Exception]] = []
    done = 0
    total = source.store.size
    for numbers, size in _batches(source):
        failures += source.store.verify(numbers)
        done += size
        if progress:
            progress(done, total)
    names = _names(source, {number for number, _ in failures})
    changed = [error for _, error in failures if isinstance(error, SourceChangedError)]
    found = ((number, error) for number, error in failures if not isinstance(error, SourceChangedError))
    bad = [_describe(source, number, names.get(number), error) for number, error in found]
    if changed and not bad:  # else, what is damaged is of more use
        raise changed[0]
    numbers_of_bad = {entry.number for entry in bad}
    for k, file in enumerate(source.store.files):
        if (
            source.layout in ("packed", "union")
            and source.store.first_record(k) + len(file.index) - 1 not in numbers_of_bad
        ):
            bad += _check_tree(source, k, file)
    return sorted(bad, key=lambda entry: entry.number)


def unverifiable(source: TreeView) -> int:
    """Return how many records have no checksum, so that damage to them cannot be detected."""
    return sum(len(file.index) for file in source.store.files if file.index.check == CHECK_NONE)


def _batches(source: TreeView) -> Iterator[tuple[Any, int]]:
    """Yield (int64 record numbers in order, their size in bytes): a few thousand records or a few hundred MiB each."""
    for k, file in enumerate(source.store.files):
        sizes = file.index.ends - file.index.starts
        number = source.store.first_record(k)
        for first, last in divide(sizes, BATCH_BYTES, BATCH_RECORDS):
            yield np.arange(number + first, number + last), int(np.minimum(sizes[first:last], BATCH_BYTES).sum())


def _describe(source: TreeView, number: int, name: str | None, error: Exception) -> BadRecord:
    file, row = source.store.locate(number)
    if isinstance(error, ChecksumError):
        problem = f"checksum mismatch (expected {error.expected:#010x}, got {error.actual:#010x})"
    elif isinstance(error, TruncatedError):
        problem = "the file ends before the record does"
    elif isinstance(error, ReadError) and not is_remote(file.index.path):
        problem = f"cannot be read: {error.strerror}"
    else:  # a store that fails now has not lost the record
        raise error
    return BadRecord(file.index.path, row, number, int(file.index.starts[row]), name, problem)


def _names(source: TreeView, numbers: set[int]) -> dict[int, str]:
    """Return the first path of each bad record that has one."""
    names: dict[int, str] = {}
    if not numbers:
        return names
    tree = source.tree
    for path, node in tree.walk():
        if tree.is_file(node) and tree.record(node) in numbers:
            names.setdefault(tree.record(node), os.fsdecode(path))
    return names


def _check_tree(source: TreeView, k: int, file: SourceFile) -> Iterator[BadRecord]:
    """Check that the parts of the tree's record agree with each other. Its own checksum cannot show that."""
    index, row = file.index, len(file.index) - 1
    where = (index.path, row, source.store.first_record(k) + row, int(index.starts[row]), None)
    if index.blocks is None:  # it has no trailer
        return
    expected = packed_pickle.encode(source.tree if source.layout == "packed" else load_packed(file).tree)
    if not _are_equal(source.store.read_range(where[2], 0, len(expected)), expected):
        yield BadRecord(*where, "the tree that ffrecord sees differs from the one in the trailer")
    blocks = index.blocks
    for j in range(len(blocks.records)):
        assert index.checksums is not None
        record = int(blocks.records[j])
        length, crc = index.length(record), 0
        for b in range(int(blocks.first_blocks[j]), int(blocks.first_blocks[j + 1])):
            size = min(BLOCK, length)
            crc = crc32_combine(crc, int(blocks.checksums[b]), size)
            length -= size
        if crc != int(index.checksums[record]):
            yield BadRecord(*where, f"the block checksums of record {record} do not combine to its checksum")


def _are_equal(one: UInt8Array, other: UInt8Array) -> bool:
    """Compare arrays. ``np.array_equal`` of all would make a third one."""
    pieces = (slice(begin, begin + BLOCK) for begin in range(0, len(other), BLOCK))
    return len(one) == len(other) and all(np.array_equal(one[piece], other[piece]) for piece in pieces)
