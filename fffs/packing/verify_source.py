"""verify_source: opens and verifies a source."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fffs.base.jobs import Progress
from fffs.errors import FormatError
from fffs.files.verity import look
from fffs.layouts import load_records, load_source
from fffs.layouts.view import TreeView
from fffs.packing.sidecars import suspects
from fffs.packing.verify import BadRecord, unverifiable, verify
from fffs.records import index_cache


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


def _load(paths: list[str], form: str | None) -> tuple[TreeView, FormatError | None]:
    """Open a source. If its tree of names is damaged, return its records alone, and the error."""
    with index_cache.unused():
        try:
            return load_source(paths, format=form), None
        except FormatError as refusal:
            return load_records(paths, form), refusal
