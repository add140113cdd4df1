"""verify_source: opens and verifies a source, also each of its files on an executor."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from fffs.base.importing import importing
from fffs.base.jobs import Progress
from fffs.cluster.engines import executing
from fffs.cluster.executors import Call, ExecutorLike, run_calls
from fffs.cluster.report import failure_line
from fffs.errors import FormatError
from fffs.files.verity import look
from fffs.formats.sources import expand_sources
from fffs.layouts import load_records, load_source
from fffs.layouts.view import TreeView
from fffs.objects.locations import is_folder
from fffs.objects.names import is_remote
from fffs.packing.sidecars import suspects
from fffs.packing.verify import BadRecord, unverifiable, verify
from fffs.records import index_cache

log = logging.getLogger("fffs.verify")


@dataclass(frozen=True)
class Findings:
    """What was found: numbers of records, of their bytes, and of records without checksums; the bad records; of each
    file what fs-verity says; sidecars from which all records differ. Can be pickled.
    """

    records: int
    size: int
    unverifiable: int
    bad: list[BadRecord] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)
    stale: list[str] = field(default_factory=list)


def verify_source(paths: list[str], form: str | None = None, progress: Progress | None = None) -> Findings:
    """Verify a source.

    Args:
        paths: its files or folders.
        form: name of their format, or None.
        progress: called with (bytes done, total) from time to time.

    Raises:
        FormatError: it is damaged in another way than that records are bad. Also what opening it raises.

    """
    source, refusal = _load(paths, form)
    with source:
        bad = verify(source, progress)
        if refusal and not bad:
            raise refusal
        if refusal:  # the tree is damaged: load_records named the records by their numbers, which is no help here
            bad = [replace(entry, name=None) for entry in bad]
        return Findings(
            source.store.n,
            source.store.size,
            unverifiable(source),
            bad,
            {file.index.path: str(look(file.file)) for file in source.store.files},
            suspects(source.store.files, (entry.source for entry in bad)),
        )


def verify_files(
    paths: list[str],
    form: str | None,
    executor: ExecutorLike,
    progress: Progress | None = None,
    warn: Callable[[str], None] = log.warning,
) -> Findings:
    """As ``verify_source``, for the record files and data sets of a source one by one, on an executor.

    warn: called with a line for each attempt at a file that failed and is made again.

    Raises WorkerError in addition: the worker of a file died three times; the message names it.
    """
    files = [name if is_remote(name) else os.path.abspath(name) for path in paths for name in _files_of(path, form)]
    sizes = [_size(name) for name in files]
    found: list[Findings] = [Findings(0, 0, 0)] * len(files)
    done = 0
    with executing(executor) as workers:
        if workers is None:
            return verify_source(paths, form, progress)
        calls = [Call(verify_source, ([name], form), name) for name in files]

        def failed(number: int, attempt: int, error: Exception, tries: int) -> None:
            if attempt < tries:
                warn(failure_line(files[number], attempt, error, tries))

        with contextlib.closing(run_calls(calls, workers, wrap=True, failed=failed)) as results:
            for number, result in results:
                found[number] = result
                done += sizes[number]
                if progress:
                    progress(done, sum(sizes))
    return _join(found)


def _files_of(path: str, form: str | None) -> list[str]:
    """Return the files that are verified one by one. The files of a data set belong together."""
    if form is None and is_folder(path):
        with importing:
            from fffs.granular.shards import data_set_folders
        if data_set_folders(path):
            return [path]
    return expand_sources(path)


def _size(name: str) -> int:
    """Return the size of a local file, for progress; opening it says what is wrong."""
    with contextlib.suppress(OSError):
        return 0 if is_remote(name) else os.path.getsize(name)
    return 0


def _join(found: Sequence[Findings]) -> Findings:
    """Return what was found in all files; records are numbered through them."""
    bad: list[BadRecord] = []
    first = 0
    for one in found:
        bad += [replace(entry, number=entry.number + first) for entry in one.bad]
        first += one.records
    return Findings(
        first,
        sum(one.size for one in found),
        sum(one.unverifiable for one in found),
        bad,
        {path: digest for one in found for path, digest in one.digests.items()},
        [name for one in found for name in one.stale],
    )


def _load(paths: list[str], form: str | None) -> tuple[TreeView, FormatError | None]:
    """Open a source. If its tree of names is damaged, return its records alone, and the error."""
    with index_cache.unused():
        try:
            return load_source(paths, format=form), None
        except FormatError as refusal:
            return load_records(paths, form), refusal
