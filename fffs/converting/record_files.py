"""Writes records to one record file, or to parts in a folder, and compares them with their source."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence

import numpy as np

from fffs.base.descriptors import are_free
from fffs.base.jobs import Jobs, Progress
from fffs.converting.plan import Plan
from fffs.converting.records import Batches, RecordSource, StoredRecords
from fffs.converting.verifying import differs, rereading
from fffs.errors import UsageError
from fffs.files.atomic_folder import new_folder
from fffs.files.file import UInt8Array
from fffs.formats.record_writer import RecordWriter
from fffs.formats.sources import open_files
from fffs.records.source_file import SourceFile
from fffs.records.store import RecordStore

PIECE = 1 << 20  # bytes that are compared at a time
FRAME = 24  # bytes around a record, at most
SPARE = 4  # descriptors that are used while all parts are open
DEFAULT_JOBS = 2  # one thread reads and verifies while another writes: file systems serialise writes to a file

Done = tuple[int, int, int]
"""The number of records (or rows, or files), their bytes, and the number of parts."""

Warn = Callable[[str], None]


def write_files(plan: Plan, records: RecordSource, progress: Progress | None, warn: Warn) -> Done:
    """Convert records to a record file, or to parts in a new folder."""
    assert plan.form is not None
    lengths = records.lengths
    if line := plan.form.check_empty(lengths, plan.request.source):
        warn(line)
    total = int(lengths.sum())
    work = Jobs(total * (1 + plan.request.verify), progress)
    bounds = plan.cut(lengths)
    refuse_too_many(plan, len(bounds) + 1)
    with contextlib.closing(records.batches(bounds, plan.request.jobs or DEFAULT_JOBS)) as batches:
        if plan.request.split:
            _write_parts(plan, records, bounds, batches, work)
        else:
            _write_one(plan, records, batches, work)
    return len(lengths), total, len(bounds) + 1


def refuse_too_many(plan: Plan, parts: int, files: int = 1) -> None:
    """Raise UsageError if this process may not have all parts open, to compare them. files: the number in each part."""
    if plan.request.verify and plan.request.split and not are_free(parts * files + SPARE):
        raise UsageError(
            f"{plan.request.target}: {parts} parts cannot be compared, because this process may not open so many "
            "files; allow it more of them (ulimit -n), write fewer parts, or omit --verify"
        )


def _write_one(plan: Plan, records: RecordSource, batches: Batches, work: Jobs) -> None:
    assert plan.form is not None
    target, count = plan.request.target, len(records.lengths)
    with plan.form.create(target, count, plan.request.bag_layout) as writer:
        if not plan.request.force:
            writer.keep_existing()
        writer.expect_size(int(records.lengths.sum()) + count * FRAME)
        write_records(writer, batches, count, work)
        next(batches, None)  # lets a stream check that it has no further records
        if plan.request.verify:
            compare_with(records, [writer.reread()], plan.request.target, work)
        plan.sources.refuse_changed()


def _write_parts(plan: Plan, records: RecordSource, bounds: list[int], batches: Batches, work: Jobs) -> None:
    assert plan.form is not None
    edges = [0, *bounds, len(records.lengths)]
    names, counts = plan.part_names(len(bounds) + 1), np.diff(edges).tolist()
    with new_folder(plan.request.target) as here:
        paths = [os.path.join(here, name) for name in names]
        for path, count in zip(paths, counts, strict=True):
            with plan.form.create(path, count, plan.request.bag_layout) as writer:
                write_records(writer, batches, count, work)
        next(batches, None)
        if plan.request.verify:
            with rereading(here):
                compare_with(records, open_files(paths, True, plan.form.name), plan.request.target, work)
        plan.sources.refuse_changed()


def write_records(writer: RecordWriter, batches: Batches, count: int, work: Jobs) -> None:
    """Write the next records, until the file has ``count``."""
    while writer.count < count:
        batch = next(batches)
        writer.write_batch(batch.data, batch.offsets)
        work.count(len(batch.data))
        del batch


def compare_with(
    records: RecordSource, files: list[SourceFile], target: str, work: Jobs, bounds: Sequence[int] = ()
) -> None:
    """Raise RecordError unless the written files hold the records. Closes the files. bounds: that no batch crosses."""
    with contextlib.closing(StoredRecords(RecordStore(files), target)) as result:
        compare_records(records, result, target, work, bounds)


def compare_records(
    source: RecordSource, result: RecordSource, target: str, work: Jobs, bounds: Sequence[int] = ()
) -> None:
    """Raise RecordError for the first record that differs."""
    work.count(0)
    if not np.array_equal(source.lengths, result.lengths):
        same = min(len(source.lengths), len(result.lengths))
        unlike = np.flatnonzero(source.lengths[:same] != result.lengths[:same])
        raise differs(target, int(unlike[0]) if len(unlike) else same)
    first = 0
    with contextlib.closing(source.batches(bounds)) as given, contextlib.closing(result.batches(bounds)) as written:
        for ours in given:  # zip would keep them, too
            theirs = next(written)
            at = _first_difference(ours.data, theirs.data)
            if at >= 0:
                raise differs(target, first + int(np.searchsorted(ours.offsets, at, side="right")) - 1)
            first += len(ours.offsets) - 1
            work.count(len(ours.data))
            del ours, theirs  # frees two batches before the next two are read


def _first_difference(one: UInt8Array, other: UInt8Array) -> int:
    """Return where arrays of one size differ, or -1. Comparing all at once would make a third array."""
    for begin in range(0, len(one), PIECE):
        unlike = one[begin : begin + PIECE] != other[begin : begin + PIECE]
        if unlike.any():
            return begin + int(np.argmax(unlike))
    return -1
