"""Divides source files into parts: by their records, from their indexes; or whole files, by their sizes."""

from __future__ import annotations

import contextlib
import enum
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fffs.base.together import together
from fffs.converting.parts import cut
from fffs.converting.source_parts import SourcePart, digest_of, stamp_of
from fffs.errors import UsageError
from fffs.formats.sources import open_files, openers
from fffs.formats.table import Format
from fffs.layouts import packed
from fffs.native.checksums import CHECK_NONE
from fffs.objects.locations import open_file
from fffs.packing.division import cut_at
from fffs.records.index import Int64Array, UInt32Array
from fffs.records.store import RecordStore

Divided = list[tuple[list[SourcePart], int]]
"""The source of each part, and its bytes."""


class Packs(enum.Enum):
    """What is done with packed folders: they are refused, or only records as others, or all sources are such."""

    REFUSED = enum.auto()
    AS_RECORDS = enum.auto()
    WITH_NAMES = enum.auto()


class _Records(NamedTuple):
    """The records of a file. ``scanned``: they are found by a scan."""

    path: str
    size: int
    stamp: str
    lengths: Int64Array
    checksums: UInt32Array | None
    scanned: bool


def divide_records(paths: Sequence[str], form: Format, parts: int, packs: Packs) -> Divided:
    """Divide the records of files into parts of equal size, which differ by less than 2 % unless single records are
    larger. The same records give the same parts.

    Raises:
        UsageError: a packed folder, or a file that is none.
        FormatError, RecordError, ReadError: a file is damaged or cannot be read.

    """
    files = together(lambda path: _look(path, form, packs), paths, openers(paths))
    lengths = np.concatenate([np.empty(0, np.int64), *(file.lengths for file in files)])
    if packs is Packs.WITH_NAMES:
        lengths[np.cumsum([len(file.lengths) for file in files]) - 1] = 0  # the tree of each
    ends = np.cumsum([0, *(len(file.lengths) for file in files)])
    divided: Divided = []
    for begin, end in itertools.pairwise([0, *cut(lengths, parts, None), len(lengths)]):
        found: list[SourcePart] = []
        for k in range(int(np.searchsorted(ends, begin, "right")) - 1, len(files)):
            first, stop = max(begin - int(ends[k]), 0), min(end - int(ends[k]), len(files[k].lengths))
            if stop <= 0 and found:
                break
            if first < stop:
                found.append(_part(files[k], form, first, stop, packs is Packs.WITH_NAMES))
        divided.append((found, int(lengths[begin:end].sum())))  # in a pack, the tree counts as nothing
    return divided


def _look(path: str, form: Format, packs: Packs) -> _Records:
    file, *_ = open_files([path], True, form.name)
    with contextlib.closing(RecordStore([file])) as store:
        is_packed = packed.is_packed(file)
        if packs is Packs.REFUSED and is_packed:
            raise UsageError(
                f"{path}: a packed folder: its names would be lost; --to ffrecord without --from makes a set of packs, "
                f"and --from {form.name} converts the records to other formats"
            )
        if packs is Packs.WITH_NAMES and not is_packed:
            raise UsageError(f"{path}: not a packed folder, unlike other sources; convert them separately")
        index = file.index
        lengths = store.lengths(np.arange(store.n))  # refuses what is truncated
        # The checksums of a sidecar are those of the whole file.
        scanned = form.frames is not None and (index.check == CHECK_NONE or index.check == form.frames.check)
        return _Records(path, file.file.size, stamp_of(file.file), lengths, index.checksums, scanned)


def _part(file: _Records, form: Format, first: int, stop: int, packs: bool) -> SourcePart:
    begin = end = 0
    if file.scanned and form.frames is not None:
        around = form.frames.head + form.frames.tail
        begin = int(file.lengths[:first].sum()) + around * first
        end = begin + int(file.lengths[first:stop].sum()) + around * (stop - first)
    digest = digest_of(file.lengths, file.checksums, first, stop - first, packs)
    return SourcePart(file.path, file.size, file.stamp, len(file.lengths), first, stop - first, begin, end, digest)


def divide_files(paths: Sequence[str], parts: int, what: str) -> Divided:
    """Divide whole files into parts that are about equally large, in their order.

    what: they are, for messages. Raises UsageError if there are more parts than files.
    """
    if parts > len(paths):
        raise UsageError(
            f"{paths[0]}: {what} are in one part each, because only a reader from the beginning finds what is in them; "
            f"give at most --parts {len(paths)}, or unpack and pack them"
        )
    files = together(_whole, paths, openers(paths))
    ends = np.cumsum([0, *(file.size for file in files)])
    places = cut_at(ends, np.zeros(len(ends), np.int64), parts)
    return [(files[a:b], int(ends[b] - ends[a])) for a, b in itertools.pairwise(places)]


def _whole(path: str) -> SourcePart:
    with open_file(path) as file:
        return SourcePart(path, file.size, stamp_of(file))
