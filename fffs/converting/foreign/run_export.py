"""Writes files in the format of another library: one file, or parts in a folder, complete or not at all."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import Final

from fffs.base.failures import writing
from fffs.base.jobs import Jobs, Progress
from fffs.converting.foreign.exported import Exported
from fffs.converting.foreign.exports import Export, Pass
from fffs.converting.plan import Plan
from fffs.converting.record_files import Done, Warn
from fffs.converting.verifying import rereading
from fffs.errors import UnsupportedError
from fffs.files.atomic_folder import new_folder
from fffs.files.atomic_output import AtomicOutput
from fffs.objects.locations import open_file
from fffs.objects.new_object import new_output

BUFFER: Final = 1 << 20  # bytes that are written at a time
AROUND: Final = 1 << 11  # bytes around a file, about
MANY: Final = 10**6  # more parts than this have no names of one length


def run_export(plan: Plan, content: Exported, progress: Progress | None, warn: Warn) -> Done:
    """Write the content in the format of the plan.

    Raises:
        UsageError, UnsupportedError: the format cannot hold this content; nothing was written.
        WriteError: the result cannot be written. RecordError: it differs. Also as reading the source.

    """
    export = plan.export
    assert export is not None
    for line in export.prepare(content, plan.request.split):
        warn(line)
    work = Jobs(content.total_bytes * (1 + plan.request.verify), progress)
    work.count(0)
    bounds = plan.cut(export.sizes(content)) if plan.request.split else []
    if len(bounds) >= MANY:
        raise UnsupportedError(f"{plan.request.target}: would have {len(bounds) + 1} parts; write larger ones")
    if plan.request.split:
        _write_parts(plan, export, content, bounds, work)
    else:
        _write_one(plan, export, content, work)
    return content.files, content.total_bytes, len(bounds) + 1


def _write_one(plan: Plan, export: Export, content: Exported, work: Jobs) -> None:
    with new_output(plan.request.target) as file:
        file.replaces = plan.request.force
        file.expect_size(content.total_bytes + content.files * AROUND)
        with content.reading() as reading:
            _write(export.begin(content, [], reading, work), file)
            reading.finish()
        if plan.request.verify:
            with file.reread() as result, content.reading() as reading:
                export.begin(content, [], reading, work).compare(result, plan.request.target)
        plan.sources.refuse_changed()
        file.commit()


def _write_parts(plan: Plan, export: Export, content: Exported, bounds: Sequence[int], work: Jobs) -> None:
    target = plan.request.target
    names = plan.part_names(len(bounds) + 1)
    with new_folder(target) as here:
        with content.reading() as reading:
            parts = export.begin(content, bounds, reading, work)
            for name in names:
                with new_output(os.path.join(here, name)) as file:
                    _write(parts, file)
                    file.commit()
            reading.finish()
        if plan.request.verify:
            with rereading(here), content.reading() as reading:
                parts = export.begin(content, bounds, reading, work)
                for name in names:
                    with open_file(os.path.join(here, name)) as result:
                        parts.compare(result, os.path.join(target, name))
        plan.sources.refuse_changed()


def _write(parts: Pass, file: AtomicOutput) -> None:
    """Write the next part of a pass. An error of the disk names the file."""
    with writing(file.path), file.raw() as raw:  # after an error, closing it drops what is in the buffer
        sink = io.BufferedWriter(raw, BUFFER)
        parts.write(sink)
        sink.flush()
