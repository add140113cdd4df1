"""convert: turns record files, data sets, archives and folders into those of another format."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from fffs.base.importing import importing
from fffs.base.jobs import Progress
from fffs.base.numbers import check_positive
from fffs.base.paths import PathLike, without_zero
from fffs.converting import kinds
from fffs.converting.foreign.exports import find_export, refuse_export
from fffs.converting.plan import make_plan
from fffs.converting.request import Request
from fffs.converting.run import run
from fffs.errors import UsageError
from fffs.formats.sources import expand_sources
from fffs.formats.table import format_named, format_of_target, format_with
from fffs.objects.names import is_url
from fffs.records import index_cache

if TYPE_CHECKING:
    from fffs.cluster.executors import ExecutorLike
    from fffs.cluster.report import JobReport

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
    source: PathLike | Sequence[PathLike],
    destination: PathLike,
    *,
    from_: str | None = None,
    prefix: str | None = None,
    to: str | None = None,
    layout: str | None = None,
    key: str | None = None,
    column: str | None = None,
    parts: int | None = None,
    part_size: int | None = None,
    jobs: int | None = None,
    verify: bool = False,
    force: bool = False,
    align: bool = False,
    verity: bool = False,
    executor: ExecutorLike = None,
    restart: bool = False,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
    report: Callable[[JobReport], None] | None = None,
) -> Conversion:
    """Convert a source. The result appears complete or not at all.

    Record files become record files of another format, with the same bytes in each record, or a granular data set of
    one key. A data set becomes one of another layout, or a packed folder with a file ``NNNNNN/KEY`` for each blob; such
    a packed folder becomes a data set again. A tar or zip archive, or a folder, becomes a packed folder; archives are
    read without unpacking them. A packed folder becomes a tar archive, or shards of WebDataset, with its names; records
    become one with the names ``NNNNNN.KEY``. Parquet and Arrow files, and LMDB, become packed folders or records. A
    packed folder becomes a table of paths and bytes, records one of a single column. Files of array_record are record
    files, too. docs/formats.md has the details.

    Args:
        source: a file of any format, a folder of parts, or the name or pattern of shards; a data set; an archive,
            which may be compressed; or a folder. With ``parts``, also a list of record files, or of archives.
        destination: the file, or the folder for parts and data sets.
        from_: "ffrecord", "tfrecord", "ofrecord", "bag", "granular", "tar", "zip", "folder", "parquet", "arrow",
            "lmdb", "array_record" or "mds". None: detect it.
        prefix: for a folder of OFRecord parts: what their names have before the numbers, as for ``fffs.open``.
        to: one of the first five, "tar", "parquet", "arrow" or "array_record". None: use the format that the
            destination's name implies; parts of record files have that of their source otherwise.
        layout: "v1" or "v3"; the layout of Bags and data sets that are written. None: "v1".
        key: the key of a data set that is made from record files, the ending of the names of records in archives, and
            the column of records in tables. None: "data".
        column: make records of this column of a table (its nulls are errors); or "value", of an LMDB. None: a packed
            folder gets all columns, other results the only one that has bytes.
        parts: write this number of parts (at most one per record), in a folder. Archives become a set of packs, which
            is used like one.
        part_size: write parts with at most this many bytes of records (or with one record), in a folder.
        jobs: how many files of a folder or archive, or batches of records, are copied at once. The default for records
            is two: one batch is read while another is written.
        verify: read the result back and compare it with the source, before it is put in place.
        force: replace an existing file.
        align: let each file of a packed folder begin where ``-o kernel`` of a mount needs it, as ``pack_folder`` does.
        verity: put a packed folder under fs-verity, as ``pack_folder`` does.
        executor: with ``parts``, where they are written, as for ``pack_folder``. ``plan_convert`` says what is divided
            and how. None: in this process.
        restart: with ``parts``, remove what an earlier call left that was killed, instead of going on with it.
        progress: called with (bytes done, total bytes) from time to time, from any thread.
        warn: called with a line for each thing that is left out or looks wrong; the default logs it.
        report: with ``parts``, as for ``pack_folder``.

    Returns:
        A summary of the conversion.

    Raises:
        UsageError: the destination already exists, or this source cannot become this destination, or a given option
            has no effect on it.
        SourceNotFoundError, FormatError, RecordError, ReadError: the source is missing, damaged, or cannot be read.
        SourceChangedError: the source changed meanwhile.
        WriteError: the destination cannot be written.
        RecordError: also if ``verify`` finds that the result differs from the source; nothing was put in place.
        WorkerError: the worker of a part died three times, or the executor failed.

    Examples:
        >>> fffs.convert("train.ffr", "new.bag", verify=True)
        Conversion(source='ffrecord', destination='bag', items=3, total_bytes=11, parts=1)

    """
    check_positive(parts=parts, jobs=jobs)
    target, from_ = without_zero(destination), format_with(prefix, from_)
    sources = [source] if isinstance(source, (str, bytes, os.PathLike)) else list(source)
    planned = executor is not None or restart or report is not None or len(sources) != 1
    if planned and parts is None:
        raise UsageError(
            f"{target}: executor, restart, report and several sources are for parts; give their number, too"
        )
    path = without_zero(sources[0]) if sources else ""
    if planned:
        refuse_export(to, target)
    if parts is not None and not find_export(to, target) and (planned or _needs_plan(path, target, from_, to)):
        others = {"part_size": part_size, "verity": verity or None, "column": column, "layout": layout, "key": key}
        for option, given in others.items():
            if given is not None:
                raise UsageError(f"{target}: {option} cannot be combined with this; omit it")
        with importing:
            from fffs.cluster.report import JobWatch
            from fffs.converting.convert_parts import convert_parts
            from fffs.converting.convert_plan import make_request
        asked = make_request(sources, target, parts, from_, to, align, verify, prefix)
        watch = JobWatch(progress, warn or log.warning, report)
        results = convert_parts(asked, executor, jobs, restart, watch, warn or log.warning)
        count, total = sum(result.records for result in results), sum(result.total_bytes for result in results)
        return Conversion(asked.kind, asked.to, count, total, len(results))
    request = Request(
        source=path,
        target=target.rstrip("/") or target,
        from_=from_,
        prefix=prefix,
        to=to,
        layout=layout,
        key=key,
        column=column,
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


def _needs_plan(source: str, target: str, from_: str | None, to: str | None) -> bool:
    """Whether parts are only written by the tasks of a plan: packs, and objects."""
    kind = from_ or kinds.kind_of_source(source, target)
    if kind in kinds.ARCHIVES or (is_url(target) and kind != kinds.GRANULAR):
        return True
    if from_ or to == kinds.GRANULAR or not kinds.is_records(kind):
        return False
    form = format_named(to) if to else format_of_target(target) or format_named(kind)
    with importing:
        from fffs.converting.convert_plan import packs_among
        from fffs.converting.divide_sources import Packs
    return packs_among(expand_sources(source), kind, form, with_records=False) is Packs.WITH_NAMES
