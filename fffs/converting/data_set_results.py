"""Conversions from data sets and to data sets, as Bags or as the tree of a packed folder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

import numpy as np

from fffs.base.jobs import Jobs, Progress
from fffs.converting.datasets import SCALAR, BlobRows, load_folder, load_packed
from fffs.converting.plan import Plan
from fffs.converting.record_files import Done, Warn, compare_records, refuse_too_many, write_files
from fffs.converting.records import RecordSource
from fffs.converting.request import Content, Result
from fffs.converting.verifying import differs, rereading
from fffs.files.atomic_folder import new_folder, shown_as
from fffs.files.atomic_output import AtomicOutput
from fffs.granular import spec as specs
from fffs.granular.codecs import Codec
from fffs.granular.columns import Blobs
from fffs.granular.dataset_writer import DatasetWriter
from fffs.granular.shards import shard_name
from fffs.layouts import load_source
from fffs.layouts.plain import number_names
from fffs.objects.new_object import new_output
from fffs.packing.numbering import packable
from fffs.packing.pack_file import PackFile
from fffs.packing.protect import commit, reread
from fffs.tree.builder import TreeBuilder
from fffs.tree.tree import ROOT


def from_data_set(plan: Plan, progress: Progress | None, warn: Warn) -> Done:
    """Convert a data set, which may be packed."""
    with contextlib.closing(_load(plan)) as data:
        if plan.result is Result.FILES:
            return write_files(plan, data.blobs, progress, warn)
        return (_to_data_set if plan.result is Result.DATA_SET else _to_pack)(plan, data, progress)


def from_records(plan: Plan, records: RecordSource, progress: Progress | None) -> Done:
    """Convert records to a data set of one key."""
    counts = np.full((len(records.lengths), 1), SCALAR, np.int64)
    data = BlobRows(plan.request.source, {plan.request.key_name: "bytes"}, counts, records, 0)
    return _to_data_set(plan, data, progress)


def _load(plan: Plan) -> BlobRows:
    path = plan.request.source
    if plan.content is not Content.PACKED_ROWS:
        return load_folder(path)
    source = load_source(path)
    try:
        return load_packed(source, path)
    except BaseException:
        source.close()
        raise


def _compare(data: BlobRows, result: BlobRows, target: str, work: Jobs) -> None:
    """Raise RecordError unless a result has the same rows as its source."""
    if data.spec != result.spec or not np.array_equal(data.counts, result.counts):
        raise differs(target, 0)
    compare_records(data.blobs, result.blobs, target, work)


# ---------------------------------------------------------------- Bags


class AsIs(Mapping[str, Codec]):
    """Maps every type to a codec that leaves blobs unchanged."""

    def __getitem__(self, kind: str) -> Codec:
        return lambda blob, *_: blob

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def _to_data_set(plan: Plan, data: BlobRows, progress: Progress | None) -> Done:
    request, target = plan.request, plan.request.target
    data.refuse_layout(request.bag_layout, target)
    work = Jobs(data.total_bytes * (1 + request.verify), progress)
    edges = [0, *plan.cut(data.sizes), len(data)]
    refuse_too_many(plan, len(edges) - 1, len(data.spec) + (request.bag_layout != "v3"))
    with contextlib.closing(data.rows()) as rows:
        if not request.split and request.bag_layout == "v1":  # the writer of this layout makes its own temporary folder
            with DatasetWriter(target, data.spec, AsIs(), "v1") as writer:
                _append(writer, rows, len(data), work)
                rows.close()  # which has the last row in memory
                here = writer.complete()
                with shown_as(here, target):
                    _check(plan, data, here, work)
        else:
            with new_folder(target) as here:
                for k in range(len(edges) - 1):
                    folder = os.path.join(here, shard_name(k)) if request.split else here
                    with DatasetWriter(folder, data.spec, AsIs(), request.bag_layout) as writer:
                        _append(writer, rows, edges[k + 1] - edges[k], work)
                rows.close()
                _check(plan, data, here, work)
    return len(data), data.total_bytes, len(edges) - 1


def _append(writer: DatasetWriter, rows: Iterator[Blobs], count: int, work: Jobs) -> None:
    for _ in range(count):
        row = next(rows)
        writer.append_blobs(row)
        work.count(sum(sum(map(len, blob)) if isinstance(blob, list) else len(blob) for blob in row))
        del row


def _check(plan: Plan, data: BlobRows, here: str, work: Jobs) -> None:
    """Verify a complete data set, if requested, and its sources, before it is put in place."""
    if plan.request.verify:
        with rereading(here), contextlib.closing(load_folder(here)) as result:
            _compare(data, result, plan.request.target, work)
    plan.sources.refuse_changed()


# ---------------------------------------------------------------- a packed folder


def _to_pack(plan: Plan, data: BlobRows, progress: Progress | None) -> Done:
    target = plan.request.target
    work = Jobs(data.total_bytes * (1 + plan.request.verify), progress)
    with new_output(target) as file:
        file.replaces = plan.request.force
        _pack_rows(data, file, work, plan.request.align)
        if plan.request.verify:
            with reread(file) as result:
                _compare(data, load_packed(result, target), target, work)
        plan.sources.refuse_changed()
        commit(file, plan.request.verity, progress)
    return len(data), data.total_bytes, 1


def _pack_rows(data: BlobRows, file: AtomicOutput, work: Jobs, align: bool) -> None:
    lengths, spec = data.blobs.lengths, specs.encode(data.spec)
    with packable(data.shown):
        tree = _lay_out(data).build(len(lengths) + 1, data.shown)
    pack = PackFile(file, np.append(lengths, len(spec)), align)
    k = 0
    with contextlib.closing(data.blobs.batches(())) as batches:
        for batch in batches:
            for record in batch:
                pack.put(k, 0, record)
                k += 1
            work.count(len(batch.data))
            del batch, record
    pack.put(k, 0, spec)
    pack.finish(tree)


def _lay_out(data: BlobRows) -> TreeBuilder:
    """Build the names of all blobs, in the order of the blobs, followed by that of the spec."""
    builder = TreeBuilder(mtime=data.mtime)
    keys, record = [key.encode() for key in data.spec], 0
    for name, counts in zip(number_names(len(data)), data.counts, strict=True):
        row = builder.add_directory(ROOT, name, mtime=data.mtime)
        for key, count in zip(keys, counts.tolist(), strict=True):
            parent, files = row, iter([key])
            if count != SCALAR:
                parent, files = builder.add_directory(row, key, mtime=data.mtime), number_names(count)
            for file in files:
                builder.add_file(parent, file, record, mtime=data.mtime)
                record += 1
    builder.add_file(ROOT, specs.NAME.encode(), record, mtime=data.mtime)
    return builder
