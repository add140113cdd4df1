"""run: carries out the plan of a conversion."""

from __future__ import annotations

import contextlib

from fffs.base.jobs import Progress, default_jobs
from fffs.base.withblock import closed_on_error
from fffs.converting import data_set_results, packs
from fffs.converting.archives import open_archive
from fffs.converting.datasets import load_folder
from fffs.converting.foreign.exported import ExportedPack, ExportedRecords
from fffs.converting.foreign.imports import import_named
from fffs.converting.foreign.items import ForeignItems, ItemFolder
from fffs.converting.foreign.run_export import run_export
from fffs.converting.pack_again import pack_again
from fffs.converting.plan import Plan
from fffs.converting.record_files import DEFAULT_JOBS, Done, Warn, write_files
from fffs.converting.records import RecordSource, StoredRecords, StreamedRecords
from fffs.converting.request import Content, Request, Result
from fffs.errors import FormatError, RecordError
from fffs.files.atomic_output import AtomicOutput
from fffs.formats.new_bag import no_appenders
from fffs.formats.sources import open_files
from fffs.formats.table import format_named
from fffs.granular.bag_reader import BagReader
from fffs.layouts import load_packed
from fffs.objects.names import is_url
from fffs.objects.new_object import new_output
from fffs.packing.contents import pack_contents
from fffs.packing.object_folder import ObjectFolder
from fffs.packing.pack import packed_folder
from fffs.packing.protect import commit
from fffs.records.store import RecordStore


def run(plan: Plan, progress: Progress | None, warn: Warn) -> Done:
    """Carry out a plan. The result is written under a temporary name, compared if requested, and then renamed. If
    anything fails or is interrupted, existing files are unchanged.

    Raises:
        UsageError, FormatError: the target does not allow these records or rows; nothing was written.
        RecordError, ReadError, SourceChangedError: the source is bad or has changed, or the result differs from it.
        WriteError: the result cannot be written.
        WriterError: a writer is appending to a Bag that would be replaced.

    """
    for line in plan.warnings:
        warn(line)
    with no_appenders(plan.replaced):
        try:
            return _run(plan, progress, warn)
        except (FormatError, RecordError):
            plan.sources.refuse_changed()  # a change explains the error
            raise


def _run(plan: Plan, progress: Progress | None, warn: Warn) -> Done:
    if plan.result is Result.EXPORT:
        return _export(plan, progress, warn)
    if plan.content is Content.FOLDER:
        return _pack_folder(plan, progress, warn)
    if plan.content is Content.ARCHIVE:
        return _pack_archive(plan, progress, warn)
    if plan.content is Content.ITEMS:
        return _pack_items(plan, progress, warn)
    if plan.content is Content.PACK:
        return pack_again(plan.request, progress)
    if plan.content is Content.RECORDS and plan.result is Result.FILES:
        with contextlib.closing(_open_records(plan, warn)) as records:
            return write_files(plan, records, progress, warn)
    if plan.content is not Content.RECORDS:
        return data_set_results.from_data_set(plan, progress, warn)
    with contextlib.closing(_open_records(plan, warn)) as records:
        return data_set_results.from_records(plan, records, progress)


def _export(plan: Plan, progress: Progress | None, warn: Warn) -> Done:
    source = plan.request.source
    if plan.content is Content.PACK:
        with load_packed(source) as view:
            return run_export(plan, ExportedPack(view, source), progress, warn)
    opened = load_folder(source).blobs if plan.content is Content.COLUMN else _open_records(plan, warn)
    with contextlib.closing(opened) as records:
        content = ExportedRecords(records, plan.request.key_name, plan.request.jobs or DEFAULT_JOBS)
        return run_export(plan, content, progress, warn)


def _open_items(plan: Plan, warn: Warn, *, names: bool) -> ForeignItems:
    row, column = import_named(plan.kind), plan.request.column
    assert row is not None
    items = row.open(plan.sources.records, plan.request.source)
    with closed_on_error((items,)):
        for line in items.left_out(column, names=names):
            warn(line)
    return items


def _open_records(plan: Plan, warn: Warn) -> RecordSource:
    source, column = plan.request.source, plan.request.column
    if import_named(plan.kind):
        items = _open_items(plan, warn, names=False)
        return StreamedRecords(lambda: contextlib.nullcontext(map(bytes, items.values(column))), source, items.close)
    form = format_named(plan.kind)
    if not form.is_compressed(source):
        return StoredRecords(RecordStore(open_files(plan.sources.records, True, form.name)), source)
    if read := form.read_stream:
        return StreamedRecords(lambda: read(source), source)
    bag = BagReader(source)
    return StreamedRecords(lambda: contextlib.nullcontext(iter(bag)), source, bag.close)


def _pack_folder(plan: Plan, progress: Progress | None, warn: Warn) -> Done:
    request = plan.request
    with packed_folder(request.source, request.target, request.jobs, progress, warn, request.align) as (
        file,
        summary,
    ):
        file.replaces = request.force
        if request.verify:
            _compare_folder(request, file, progress)
        commit(file, request.verity, progress)
    return summary.files, summary.total_bytes, 1


def _compare_folder(request: Request, file: AtomicOutput, progress: Progress | None) -> None:
    if not is_url(request.source):
        packs.compare_folder(request.source, file, progress)
        return
    with ObjectFolder(request.source, lambda _: None) as folder:
        packs.compare_contents(folder, folder.scan(), file, request.jobs or default_jobs(), progress)


def _pack_items(plan: Plan, progress: Progress | None, warn: Warn) -> Done:
    request = plan.request
    with _open_items(plan, warn, names=True) as items:
        folder = ItemFolder(items)
        contents = folder.scan(progress)
        with new_output(request.target) as file:
            file.replaces = request.force
            pack_contents(folder, contents, file, 1, progress, request.align)
            if request.verify:
                packs.compare_contents(folder, contents, file, 1, progress)
            plan.sources.refuse_changed()
            commit(file, request.verity, progress)
    return len(contents.sizes), contents.total_bytes, 1


def _pack_archive(plan: Plan, progress: Progress | None, warn: Warn) -> Done:
    request = plan.request
    jobs = request.jobs or default_jobs()
    with open_archive(request.source, plan.kind, warn) as archive:
        contents = packs.scan_archive(archive, progress)
        with new_output(request.target) as file:
            file.replaces = request.force
            pack_contents(archive, contents, file, jobs, progress, request.align)
            if request.verify:
                packs.compare_contents(archive, contents, file, jobs, progress)
            archive.refuse_changed()
            commit(file, request.verity, progress)
    return len(contents.sizes), contents.total_bytes, 1
