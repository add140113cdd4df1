"""convert: records, data sets and archives of one kind into those of another."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import NamedTuple

from fffs.base.jobs import Progress
from fffs.base.paths import PathLike
from fffs.converting.plan import Request, make_plan
from fffs.converting.run import run
from fffs.records import index_cache

__all__ = ["Conversion", "convert"]

log = logging.getLogger("fffs.convert")


class Conversion(NamedTuple):
    """What was converted: from which kind to which, how many records, rows or files, their bytes, in how many parts."""

    source: str
    destination: str
    items: int
    total_bytes: int
    parts: int


def convert(
    source: PathLike,
    destination: PathLike,
    *,
    from_: str | None = None,
    to: str | None = None,
    layout: str = "v1",
    key: str = "data",
    parts: int | None = None,
    part_size: int | None = None,
    jobs: int | None = None,
    verify: bool = False,
    force: bool = False,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
) -> Conversion:
    """Convert a source; what it becomes appears complete or not at all.

    Record files become record files of another format, with the same bytes in each record, or a granular data set of
    one key. A data set becomes one of another layout, or a packed folder with a file ``NNNNNN/KEY`` for each blob, and
    that becomes a data set again. A tar or zip archive, or a folder, becomes a packed folder; an archive is not
    unpacked for that.

    Args:
        source: a file of any format, or a folder of parts, or the name or pattern of shards; a data set; an archive,
            also a compressed one; a folder.
        destination: the file, or with parts the folder.
        from_: "ffrecord", "tfrecord", "ofrecord", "bag", "granular", "tar", "zip" or "folder"; None: as recognised.
        to: one of the first five; None: as the destination's name says.
        layout: "v1" or "v3", of Bags and data sets that are written.
        key: of the data set that a record file becomes.
        parts: write as many parts (never more than records), in a folder.
        part_size: write parts of at most so many bytes of records (or of one record), in a folder.
        jobs: how many files of a folder or archive, or batches of records, are copied at once. By default two of
            records: one is read while another is written.
        verify: read the result back and compare it with the source, before it is put in place.
        force: replace a file that is there.
        progress: called with (bytes done, bytes in all) from time to time, from any thread.
        warn: called with a line for what is left out or looks wrong; the default logs it.

    Returns:
        What was converted.

    Raises:
        UsageError: the destination is there already, or such a source cannot become such a destination.
        SourceNotFoundError, FormatError, RecordError, ReadError: the source is not there, damaged, or cannot be read.
        SourceChangedError: it changed meanwhile.
        WriteError: the destination cannot be written.
        RecordError: with ``verify``, also that the result is not what the source is; nothing was put in place.

    """
    path, target = os.fsdecode(source), os.fsdecode(destination)
    request = Request(
        source=path,
        target=target.rstrip("/") or target,
        from_=from_,
        to=to,
        layout=layout,
        key=key,
        parts=parts,
        part_size=part_size,
        jobs=jobs,
        verify=verify,
        force=force,
    )
    with index_cache.unused():
        plan = make_plan(request)
        count, total, written = run(plan, progress, warn or log.warning)
    return Conversion(plan.kind, plan.to, count, total, written)
