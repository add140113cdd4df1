"""Record files that are written, batch by batch and by several threads: the place of each record is known before."""

from __future__ import annotations

import contextlib
import os
import threading
from array import array
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from fffs.converting.records import Batch
from fffs.errors import UsageError
from fffs.files.atomic import AtomicFile
from fffs.files.pwrite import PIECES, write_at
from fffs.formats import ffrecord, ofrecord, tfrecord
from fffs.formats.bag import SUFFIX as BAG
from fffs.formats.bag import encode_table, refuse_sidecars, sidecars
from fffs.formats.bag_writer import no_appenders
from fffs.native import engine
from fffs.native.crc32c import crc32c, mask
from fffs.records.index import Int64Array

AROUND: Final = {"tfrecord": tfrecord.HEAD.size + tfrecord.TAIL.size, "ofrecord": ofrecord.HEAD.size}
"""Bytes of a frame that are not its data."""


class RecordFile:
    """A record file of which all lengths are known. ``put`` may be called from several threads, in any order."""

    def __init__(self, file: AtomicFile, table: AtomicFile | None, form: str, lengths: Int64Array) -> None:
        """file, table: empty, and the caller's; a Bag in layout v3 has a table of its own. form: see ``open_file``."""
        self._file, self._table, self._form, self._lengths = file, table, form, lengths
        # The kernel lets one thread at a time write to a file, and has the others spin: they can sleep as well.
        self._turn = threading.Lock()
        n = len(lengths)
        begin = ffrecord.header_size(n) if form == "ffrecord" else 0
        self._offsets = np.full(n + 1, begin, np.int64)
        np.cumsum(lengths + AROUND.get(form, 0), out=self._offsets[1:])
        self._offsets[1:] += begin
        self._checksums = np.zeros(n if form == "ffrecord" else 0, np.uint32)

    def put(self, first: int, batch: Batch) -> None:
        """Write the records from number first on. Raises WriteError."""
        place = int(self._offsets[first])
        if self._form in AROUND:
            frame = _tfrecord if self._form == "tfrecord" else _ofrecord
            pieces = [piece for record in batch for piece in frame(record.data)]
            for k in range(0, len(pieces), PIECES):
                place += self._write(pieces[k : k + PIECES], place)
            return
        if self._form == "ffrecord":
            for k, record in enumerate(batch, first):
                self._checksums[k] = engine.crc32(record)
        self._write([batch.data], place)

    def _write(self, pieces: list[Any], place: int, file: AtomicFile | None = None) -> int:
        """Write buffers one after another; how many bytes."""
        target = file or self._file
        with self._turn:
            done = write_at(target.fd, pieces, place, target.path)
        target.early.wrote(done)
        return done

    def finish(self) -> None:
        """Write the header or table, and put the file in place."""
        if self._form == "ffrecord":
            self._write([ffrecord.encode_header(self._checksums, self._offsets[:-1])], 0)
        elif self._form == "bag" and self._table is None:
            table = encode_table(array("Q", self._offsets[1:].tobytes()))
            self._write([table], int(self._offsets[-1]))
        if self._table is not None:
            self._finish_table(self._table)
        else:
            self._file.commit()

    def _finish_table(self, table: AtomicFile) -> None:
        """The table appears first, because a Bag without its table would pass for another."""
        self._write([self._offsets[1:].astype("<u8").tobytes()], 0, table)
        table.belongs_to(self._file)
        self._file.sync()
        table.sync()
        with no_appenders([self._file.path]):  # also to one that was not there when this began
            self._replace_both(table)

    def _replace_both(self, table: AtomicFile) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._file.path)  # an older one, to which the new table would not belong
        table.commit()
        try:
            self._file.commit()
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(table.path)
            raise


def _tfrecord(data: memoryview) -> tuple[Any, ...]:
    return tfrecord.encode_head(data.nbytes), data, tfrecord.TAIL.pack(mask(crc32c(data)))


def _ofrecord(data: memoryview) -> tuple[Any, ...]:
    return ofrecord.HEAD.pack(data.nbytes), data


@contextlib.contextmanager
def open_file(form: str, layout: str, path: str, lengths: Int64Array) -> Iterator[RecordFile]:
    """A record file that appears, complete, at the end of the block.

    Args:
        form: "ffrecord", "tfrecord", "ofrecord" or "bag".
        layout: of a Bag, "v1" or "v3".
        path: where it will be.
        lengths: int64[n]: of its records.

    """
    for known, suffix in (("ffrecord", ffrecord.SUFFIX), ("bag", BAG)):
        if form == known and not path.endswith(suffix):
            raise UsageError(f"{path}: the name of such a file must end in {suffix}")
    if form == "bag" and layout == "v1":
        refuse_sidecars(path)
    with contextlib.ExitStack() as files:
        file = files.enter_context(AtomicFile(path))
        has_table = form == "bag" and layout == "v3"
        table = files.enter_context(AtomicFile(sidecars(path)[0])) if has_table else None
        records = RecordFile(file, table, form, lengths)
        yield records
        records.finish()


def cut(lengths: Int64Array, parts: int | None, part_size: int | None) -> list[int]:
    """The records with which parts begin, but the first: parts of about the same size, or as large as allowed."""
    n, ends = len(lengths), np.cumsum(lengths)
    if parts is not None:
        total, count = int(ends[-1]) if n else 0, max(min(parts, n), 1)
        wanted = [int(np.searchsorted(ends, total * k // count, side="right")) for k in range(1, count)]
        # Each has at least one record, however the sizes are distributed.
        for k in range(count - 1):
            wanted[k] = min(max(wanted[k], wanted[k - 1] + 1 if k else 1), n - (count - 1 - k))
        return wanted
    if part_size is None:
        return []
    bounds: list[int] = []
    first = 0
    while True:
        before = int(ends[first - 1]) if first else 0
        first = max(int(np.searchsorted(ends, before + part_size, side="right")), first + 1)
        if first >= n:
            return bounds
        bounds.append(first)
