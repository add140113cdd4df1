"""convert: turns record files, data sets, archives and folders into those of another format."""

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
    """The kinds of source and destination, and the numbers of records, rows or files, of their bytes, and of parts."""

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
    align: bool = False,
    verity: bool = False,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
) -> Conversion:
    """Convert a source. The result appears complete or not at all.

    Record files become record files of another format, with the same bytes in each record, or a granular data set of
    one key. A data set becomes one of another layout, or a packed folder with a file ``NNNNNN/KEY`` for each blob; such
    a packed folder becomes a data set again. A tar or zip archive, or a folder, becomes a packed folder; archives are
    read without unpacking them.

    Args:
        source: a file of any format, a folder of parts, or the name or pattern of shards; a data set; an archive,
            which may be compressed; or a folder.
        destination: the file, or the folder for parts and data sets.
        from_: "ffrecord", "tfrecord", "ofrecord", "bag", "granular", "tar", "zip" or "folder". None: detect it.
        to: one of the first five. None: use the format that the destination's name implies.
        layout: "v1" or "v3"; the layout of Bags and data sets that are written.
        key: the key of a data set that is made from record files.
        parts: write this number of parts (at most one per record), in a folder.
        part_size: write parts with at most this many bytes of records (or with one record), in a folder.
        jobs: how many files of a folder or archive, or batches of records, are copied at once. The default for records
            is two: one batch is read while another is written.
        verify: read the result back and compare it with the source, before it is put in place.
        force: replace an existing file.
        align: let each file of a packed folder begin where ``-o kernel`` of a mount needs it, as ``pack_folder`` does.
        verity: put a packed folder under fs-verity, as ``pack_folder`` does.
        progress: called with (bytes done, total bytes) from time to time, from any thread.
        warn: called with a line for each thing that is left out or looks wrong; the default logs it.

    Returns:
        A summary of the conversion.

    Raises:
        UsageError: the destination already exists, or this source cannot become this destination.
        SourceNotFoundError, FormatError, RecordError, ReadError: the source is missing, damaged, or cannot be read.
        SourceChangedError: the source changed meanwhile.
        WriteError: the destination cannot be written.
        RecordError: also if ``verify`` finds that the result differs from the source; nothing was put in place.

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
        align=align,
        verity=verity,
    )
    with index_cache.unused():
        plan = make_plan(request)
        count, total, written = run(plan, progress, warn or log.warning)
    return Conversion(plan.kind, plan.to, count, total, written)
