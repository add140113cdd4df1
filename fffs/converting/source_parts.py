"""SourcePart: a whole source file, or records of it that follow each other: how plans name them and tasks open them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from hashlib import blake2b
from itertools import accumulate
from typing import Any, Final, NamedTuple

import numpy as np

from fffs.base.paths import as_utf8, of_utf8
from fffs.base.together import together
from fffs.base.withblock import closed_on_error
from fffs.converting.records import AdjacentRecords, Batches, RecordSource, StoredRecords, StreamedRecords
from fffs.errors import SourceChangedError
from fffs.files.file import File
from fffs.formats.frames import FrameSpan, load_span
from fffs.formats.sources import open_files, openers
from fffs.formats.table import Format
from fffs.granular.bag_reader import BagReader
from fffs.objects.locations import open_file
from fffs.records.index import Int64Array, RecordIndex, UInt32Array
from fffs.records.sidecar import with_checksums
from fffs.records.source_file import SourceFile
from fffs.records.store import RecordStore

WHOLE: Final = -1


class SourcePart(NamedTuple):
    """So many records of a file from number ``first`` on, of ``total``; or a whole file, if ``records`` is WHOLE.

    ``size`` and ``stamp``: of the file. ``begin`` and ``end``: where the frames of the records are; 0: the file has an
    index. ``digest``: of the lengths and checksums of the records.
    """

    path: str
    size: int
    stamp: str
    total: int = 0
    first: int = 0
    records: int = WHOLE
    begin: int = 0
    end: int = 0
    digest: str = ""

    @classmethod
    def of(cls, fields: Sequence[Any]) -> SourcePart:
        """Return the part that JSON holds as a list. Raises TypeError, ValueError."""
        path, size, stamp, *numbers, digest = fields
        total, first, records, begin, end = map(int, numbers)
        return cls(of_utf8(str(path)), int(size), str(stamp), total, first, records, begin, end, str(digest))

    def to_fields(self) -> list[Any]:
        """Return what ``of`` takes."""
        return [as_utf8(self.path), *self[1:]]

    @property
    def shown(self) -> str:
        """The part, for messages."""
        if self.records in (WHOLE, self.total):
            return self.path
        return f"records {self.first} to {self.first + self.records - 1} of {self.path}"

    def changed(self) -> SourceChangedError:
        """Return the error for a file that is not as it was."""
        return SourceChangedError(
            f"{self.path}: changed after the plan was made; make a new plan when nothing writes to it"
        )


def stamp_of(file: File) -> str:
    """Return what identifies the bytes of an open file, together with its size."""
    return file.tag or str(file.mtime_ns)


def digest_of(lengths: Int64Array, checksums: UInt32Array | None, first: int, count: int, packs: bool = False) -> str:
    """Return a hash of records of a file by their lengths, and their checksums if there are any.

    packs: the file is a packed folder, whose last record, its tree, counts as well.
    """
    found = blake2b(digest_size=16)
    for run in (slice(first, first + count), slice(-1, None))[: 1 + packs]:
        found.update(lengths[run].astype("<i8").tobytes())
        if checksums is not None:
            found.update(checksums[run].astype("<u4").tobytes())
    return found.hexdigest()


def refuse_changed(part: SourcePart, file: File) -> None:
    """Raise SourceChangedError unless an open file is as it was when the plan was made."""
    if (file.size, stamp_of(file)) != (part.size, part.stamp):
        raise part.changed()


# ---------------------------------------------------------------- records


def open_records(parts: Sequence[SourcePart], form: Format) -> RecordSource:
    """Open the records of parts, which the caller closes.

    Raises SourceChangedError, and what opening a file raises.
    """
    if any(part.records == WHOLE for part in parts):
        return ChainedRecords([_streamed(part, form) for part in parts])
    store, firsts = RecordStore(open_parts(parts, form)), accumulate((part.total for part in parts), initial=0)
    numbers = [first + part.first + np.arange(part.records) for part, first in zip(parts, firsts, strict=False)]
    return StoredRecords(store, shown_of(parts), np.concatenate([np.empty(0, np.int64), *numbers]))


def open_parts(parts: Sequence[SourcePart], form: Format, *, packs: bool = False) -> list[SourceFile]:
    """Open the files of parts, which have indexes. If one fails, all are closed. packs: parts of packed folders.

    Raises SourceChangedError, and what opening a file raises.
    """
    threads = openers([part.path for part in parts])
    return together(lambda part: _open(part, form, packs), parts, threads, SourceFile.close)


def shown_of(parts: Sequence[SourcePart]) -> str:
    """Return parts that follow each other, for messages."""
    if len(parts) < 2:
        return parts[0].shown if parts else "no records"
    return f"{parts[0].shown} to {parts[-1].shown}"


def _open(part: SourcePart, form: Format, packs: bool) -> SourceFile:
    file = open_file(part.path)
    with closed_on_error((file,)):
        refuse_changed(part, file)
        index = with_checksums(file, _load(part, file, form))
        found = digest_of(index.ends - index.starts, index.checksums, part.first, part.records, packs)
        if len(index) != part.total or found != part.digest:
            raise part.changed()
        return SourceFile(file, index)


def _load(part: SourcePart, file: File, form: Format) -> RecordIndex:
    if form.frames is None or not part.end:
        return form.load_index(file, True)
    return load_span(file, form.frames, FrameSpan(part.begin, part.end, part.first, part.records, part.total))


def _streamed(part: SourcePart, form: Format) -> RecordSource:
    """Return the records of a whole file that can only be read from its beginning to its end."""
    with open_file(part.path) as file:
        refuse_changed(part, file)
    if not form.is_compressed(part.path):
        return StoredRecords(RecordStore(open_files([part.path], True, form.name)), part.path)
    if (read := form.read_stream) is not None:
        return StreamedRecords(lambda: read(part.path), part.path)
    bag = BagReader(part.path)
    return StreamedRecords(lambda: contextlib.nullcontext(iter(bag)), part.path, bag.close)


class ChainedRecords:
    """The records of several sources, one after the other."""

    def __init__(self, sources: Sequence[RecordSource]) -> None:
        self._sources = sources
        self.shown = sources[0].shown

    @property
    def lengths(self) -> Int64Array:
        """As in ``RecordSource``."""
        return np.concatenate([source.lengths for source in self._sources])

    @property
    def bounds(self) -> list[int]:
        """The first records of all sources but the first. No batch crosses them."""
        return list(accumulate(len(source.lengths) for source in self._sources))[:-1]

    def batches(self, bounds: Sequence[int] = (), threads: int = 1) -> Batches:
        """As in ``RecordSource``, without bounds."""
        for source in self._sources:
            with contextlib.closing(source.batches((), threads)) as batches:
                batch: AdjacentRecords | None = None
                for batch in batches:
                    yield batch
                del batch

    def close(self) -> None:
        """Close the sources."""
        for source in self._sources:
            source.close()
