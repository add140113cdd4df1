"""Plan: all decisions about a conversion, which are made before anything is written."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

from fffs.base.numbers import check_positive
from fffs.cluster.plan_place import part_stem
from fffs.converting import kinds
from fffs.converting.datasets import is_column
from fffs.converting.foreign.exports import Export, export_named, find_export
from fffs.converting.foreign.imports import import_named
from fffs.converting.option_checks import refuse_unused
from fffs.converting.parts import cut
from fffs.converting.request import Content, Request, Result
from fffs.converting.source_files import Sources
from fffs.converting.target_checks import refuse_target
from fffs.errors import FormatError, RecordError, UsageError
from fffs.formats.part_names import are_one_set
from fffs.formats.sources import open_files
from fffs.formats.table import FORMATS, Format, format_named, format_of_target
from fffs.granular.spec import NAME
from fffs.layouts import load_source, packed
from fffs.objects.fsspec_url import without_file_scheme
from fffs.records.index import Int64Array
from fffs.records.store import RecordStore
from fffs.tree.tree import ROOT

_ARCHIVE_NAMES = (".zip", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")


@dataclass(frozen=True)
class Plan:
    """The decisions about a conversion.

    ``kind``: the kind of the source, one of ``kinds.sources()``. ``form``: the format of the files that are written;
    None for a data set, and for ``export``, the format of another library. ``replaced``: existing files that the result
    replaces. ``sources``: the files that are read, as they were before anything was opened. ``warnings``: shown before
    the conversion begins.

    The plan does not depend on the records or rows. The number of parts, and whether the format allows all records, is
    found by ``run`` before it writes.
    """

    request: Request
    kind: str
    content: Content
    result: Result
    form: Format | None
    replaced: tuple[str, ...]
    sources: Sources
    warnings: tuple[str, ...] = ()
    export: Export | None = None

    @property
    def to(self) -> str:
        """The kind of the result, one of ``kinds.destinations()``."""
        written = self.form or self.export
        return written.name if written else kinds.GRANULAR

    def cut(self, lengths: Int64Array) -> list[int]:
        """Return the first records or rows of all parts but the first. lengths: sizes of the records or rows."""
        return cut(lengths, self.request.parts, self.request.part_size)

    def part_names(self, count: int) -> list[str]:
        """Return the names of ``count`` parts in their folder."""
        written = self.form or self.export
        assert written is not None
        assert written.part_name is not None
        stem = part_stem(self.request.target)
        return [written.part_name(stem, k, count) for k in range(count)]


def make_plan(request: Request) -> Plan:
    """Plan a conversion from the source and the request. Changes nothing.

    Raises:
        UsageError: this source cannot become this target, or the target cannot be written there.
        SourceNotFoundError, FormatError, ReadError: the source is missing, damaged, or cannot be read.
        SourceChangedError: the source changed meanwhile.

    """
    _refuse_options(request)
    request = replace(request, source=without_file_scheme(request.source))
    kind = request.from_ or kinds.kind_of_source(request.source, request.target)
    if request.column and not import_named(kind):
        raise UsageError(f"{request.source}: has no columns; omit --column")
    export = find_export(request.to, request.target)
    named = format_of_target(request.target) if request.to is None and export is None else None
    to = export.name if export else named.name if named else request.to
    sources = Sources(kind, request.source, request.prefix)
    try:
        is_packed = kinds.is_records(kind) and _is_packed(kind, sources)
        content = _content(request, kind, to, is_packed, sources.records)
    except (FormatError, RecordError):
        sources.refuse_changed()  # a change explains the error
        raise
    if export:
        return _plan_export(request, kind, content, export, sources)
    to = to or _default(request, content, kind)
    form = None if to == kinds.GRANULAR else format_named(to)
    are_records = content is Content.RECORDS or _are_records(request, content, form)
    if request.for_packs and (are_records or form is None or not form.holds_trees):
        raise UsageError(f"{request.target}: {request.for_packs} is for packed folders only; omit {request.for_packs}")
    result = _result(request, content, form)
    refuse_unused(request, content, result, form)
    replaced = refuse_target(request, result, form, sources)
    warnings: tuple[str, ...] = ()
    if is_packed and not request.from_ and result is Result.FILES and form and not form.holds_trees:
        warnings = (f"{request.source}: the last record keeps the names of the files, for converting back",)
    return Plan(request, kind, content, result, form, replaced, sources, warnings)


def _plan_export(request: Request, kind: str, content: Content, export: Export, sources: Sources) -> Plan:
    """Plan a conversion into the format of another library. Raises as ``make_plan``."""
    target = request.target
    if request.for_packs:
        raise UsageError(f"{target}: {request.for_packs} is for packed folders only; omit {request.for_packs}")
    if content not in (Content.PACK, Content.RECORDS, Content.COLUMN):
        raise UsageError(
            f"{target}: {content.value} can only become a packed folder, whose name ends in .ffr; convert that to "
            f"{export.name}"
        )
    refuse_unused(request, content, Result.EXPORT, export)
    replaced = refuse_target(request, Result.EXPORT, export, sources)
    return Plan(request, kind, content, Result.EXPORT, None, replaced, sources, export=export)


def _refuse_options(request: Request) -> None:
    for kind, known in ((request.from_, kinds.sources()), (request.to, kinds.destinations())):
        if kind is not None and kind not in known:
            raise UsageError(f"there is no format {kind!r}; choose one of {', '.join(known)}")
    if request.to is None and request.target.lower().endswith(_ARCHIVE_NAMES):
        raise UsageError(
            f"{request.target}: such archives are read and not written; name a .tar or a pack (.ffr), or unpack "
            "the source (fffs unpack) and let zip or tar write the archive"
        )
    if request.column == "":
        raise UsageError(f"{request.target}: --column must name a column")
    if request.bag_layout not in ("v1", "v3"):
        raise UsageError(f"layout {request.layout!r} cannot be written, only v1 and v3")
    if request.parts is not None and request.part_size is not None:
        raise UsageError("give the number of parts or their size, not both")
    check_positive(parts=request.parts, part_size=request.part_size, jobs=request.jobs)


# ---------------------------------------------------------------- what is read


def _content(request: Request, kind: str, to: str | None, is_packed: bool, records: list[str]) -> Content:
    if import_named(kind):
        return Content.ITEMS if kinds.becomes_files(kind, to, request.column) else Content.RECORDS
    if kind in kinds.ARCHIVES:
        return Content.ARCHIVE
    if kind == kinds.FOLDER:
        return Content.FOLDER
    if kind == kinds.GRANULAR:
        return Content.COLUMN if is_column(request.source) else Content.ROWS
    if is_packed and not request.from_ and (export_named(to) or (_makes_pack(request, to) and are_one_set(records))):
        return Content.PACK
    if is_packed and (request.split or len(records) > 1):
        _refuse_torn(request, to, several=len(records) > 1)
    if is_packed and request.for_packs and not request.from_:
        return Content.PACK
    if not is_packed or request.from_ or (to not in (None, kinds.GRANULAR) and not request.split):
        return Content.RECORDS
    return Content.PACKED_ROWS


def _makes_pack(request: Request, to: str | None) -> bool:
    """Return whether the result can only be a packed folder, if the source is one."""
    return to is not None and to != kinds.GRANULAR and format_named(to).holds_trees and not request.split


def _is_packed(kind: str, sources: Sources) -> bool:
    """Return whether a packed folder is among the files."""
    if not format_named(kind).holds_trees:
        return False
    files = open_files(sources.records, True, kind)
    with contextlib.closing(RecordStore(files)):
        return any(map(packed.is_packed, files))


def _refuse_torn(request: Request, to: str | None, *, several: bool) -> None:
    """Raise UsageError if a tree would be separated from its records, to which it refers by number, or join others."""
    what = "packed folders" if several else "a packed folder"
    instead = "convert each one separately" if several else "omit --parts and --part-size"
    if to == kinds.GRANULAR or (export_named(to) and request.from_):
        return
    if to is None and (request.from_ or _has_spec(request.source)):
        return
    if to is None:  # any format would be refused, so none is asked for
        raise UsageError(
            f"{request.source}: {what}: the names would be lost; {instead}, or convert the records without names, as "
            "with --from ffrecord --to tfrecord"
        )
    if format_named(to).holds_trees:
        raise UsageError(f"{request.source}: {what}: names would lead to wrong records; {instead}")
    if not request.from_:
        raise UsageError(f"{request.source}: {what}: the names would be lost; --from ffrecord converts the records")


# ---------------------------------------------------------------- what is written


def _default(request: Request, content: Content, kind: str) -> str:
    """Return the format of the result if neither an option nor the target's name determines it."""
    if content in (Content.ARCHIVE, Content.FOLDER, Content.ITEMS):
        return next(form.name for form in FORMATS if form.holds_trees)
    if content in (Content.ROWS, Content.COLUMN) or (content is Content.PACKED_ROWS and _has_spec(request.source)):
        return kinds.GRANULAR
    if kinds.is_records(kind) and (request.parts or request.part_size):  # parts keep the format of their source
        return kind
    raise UsageError(f"{request.target}: the name does not determine a format; choose one with --to")


def _has_spec(source: str) -> bool:
    """Return whether a packed folder has a spec.json in its root, as a packed data set does."""
    with load_source(source) as loaded:
        return loaded.tree.lookup(ROOT, NAME.encode()) is not None


def _are_records(request: Request, content: Content, form: Format | None) -> bool:
    """Return whether the rows of a data set of one key become records. One FFRecord file has the data set as files."""
    return content is Content.COLUMN and form is not None and (request.split or not form.holds_trees)


def _result(request: Request, content: Content, form: Format | None) -> Result:
    """Return what is written. Raises UsageError if this source cannot become this target."""
    target, is_tree = request.target, content in (Content.ARCHIVE, Content.FOLDER, Content.ITEMS)
    if form is None and not is_tree:
        return Result.DATA_SET
    if request.split and form is not None and form.part_name is None:
        raise UsageError(f"{target}: {form.title}s have no parts; use --to granular to write a data set in parts")
    if content is Content.RECORDS or _are_records(request, content, form):
        return Result.FILES
    if form is None or not form.holds_trees:
        raise UsageError(f"{target}: {content.value} can only become a packed folder, whose name ends in .ffr")
    if request.split:
        raise UsageError(f"{target}: a packed folder is one file without parts; omit --parts and --part-size")
    return Result.PACK
