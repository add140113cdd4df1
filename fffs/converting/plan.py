"""Plan: all decisions about a conversion, which are made before anything is written."""

from __future__ import annotations

import contextlib
import enum
import os
from dataclasses import dataclass, replace

from fffs.cluster.plan_place import part_stem
from fffs.converting import kinds
from fffs.converting.datasets import is_column
from fffs.converting.parts import cut
from fffs.converting.source_files import Sources
from fffs.errors import FormatError, RecordError, UsageError
from fffs.files.atomic import SIDECARS
from fffs.files.atomic_folder import refuse_content
from fffs.files.targets import refuse_file, refuse_folder, without_dots
from fffs.formats.new_bag import no_appenders
from fffs.formats.part_names import are_one_set
from fffs.formats.sources import open_files
from fffs.formats.table import FORMATS, Format, format_named, format_of_target
from fffs.granular.spec import NAME
from fffs.layouts import load_source, packed
from fffs.objects.fsspec_url import without_file_scheme
from fffs.objects.names import is_url
from fffs.objects.new_object import object_exists
from fffs.packing.protect import refuse_verity
from fffs.records.index import Int64Array
from fffs.records.store import RecordStore
from fffs.tree.tree import ROOT

_ARCHIVE_NAMES = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")


class Content(enum.Enum):
    """What is read from a source. Messages use the values."""

    ARCHIVE = "an archive"
    FOLDER = "a folder"
    ROWS = "a data set of several keys, or with sequences,"
    COLUMN = "a data set of one key"
    PACKED_ROWS = "a packed data set"
    PACK = "a packed folder"
    RECORDS = "records"


class Result(enum.Enum):
    """What is written: a packed folder, a data set, or record files."""

    PACK = enum.auto()
    DATA_SET = enum.auto()
    FILES = enum.auto()


@dataclass(frozen=True)
class Request:
    """The arguments of ``fffs.convert``. ``target`` has no slash at its end."""

    source: str
    target: str
    from_: str | None = None
    to: str | None = None
    layout: str = "v1"
    key: str = "data"
    parts: int | None = None
    part_size: int | None = None
    jobs: int | None = None
    verify: bool = False
    force: bool = False
    align: bool = False
    verity: bool = False

    @property
    def for_packs(self) -> str:
        """An option that is given and that only packed folders have, or an empty text."""
        return "--align" if self.align else "--verity" if self.verity else ""

    @property
    def split(self) -> bool:
        """Whether the result is divided into parts."""
        return self.parts is not None or self.part_size is not None


@dataclass(frozen=True)
class Plan:
    """The decisions about a conversion.

    ``kind``: the kind of the source, one of ``kinds.sources()``. ``form``: the format of the files that are written;
    None for a data set. ``replaced``: existing files that the result replaces. ``sources``: the files that are read,
    as they were before anything was opened. ``warnings``: shown before the conversion begins.

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

    @property
    def to(self) -> str:
        """The kind of the result, one of ``kinds.destinations()``."""
        return self.form.name if self.form else kinds.GRANULAR

    def cut(self, lengths: Int64Array) -> list[int]:
        """Return the first records or rows of all parts but the first. lengths: sizes of the records or rows."""
        return cut(lengths, self.request.parts, self.request.part_size)

    def part_names(self, count: int) -> list[str]:
        """Return the names of ``count`` parts in their folder."""
        assert self.form is not None
        assert self.form.part_name is not None
        stem = part_stem(self.request.target)
        return [self.form.part_name(stem, k, count) for k in range(count)]


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
    named = format_of_target(request.target) if request.to is None else None
    to = named.name if named else request.to
    sources = Sources(kind, request.source)
    try:
        is_packed = kinds.is_records(kind) and _is_packed(kind, sources)
        content = _content(request, kind, to, is_packed, sources.records)
    except (FormatError, RecordError):
        sources.refuse_changed()  # a change explains the error
        raise
    to = to or _default(request, content, kind)
    form = None if to == kinds.GRANULAR else format_named(to)
    if request.for_packs and (content is Content.RECORDS or form is None or not form.holds_trees):
        raise UsageError(f"{request.target}: {request.for_packs} is for packed folders only; omit {request.for_packs}")
    result = _result(request, content, form)
    replaced = _refuse_target(request, result, form, sources)
    warnings: tuple[str, ...] = ()
    if is_packed and not request.from_ and result is Result.FILES and form and not form.holds_trees:
        warnings = (f"{request.source}: the last record keeps the names of the files, for converting back",)
    return Plan(request, kind, content, result, form, replaced, sources, warnings)


def _refuse_options(request: Request) -> None:
    for kind, known in ((request.from_, kinds.sources()), (request.to, kinds.destinations())):
        if kind is not None and kind not in known:
            raise UsageError(f"there is no format {kind!r}; choose one of {', '.join(known)}")
    if request.to is None and request.target.lower().endswith(_ARCHIVE_NAMES):
        raise UsageError(
            f"{request.target}: archives are read and not written; name a pack (.ffr), or unpack the source "
            "(fffs unpack) and let zip or tar write the archive"
        )
    if request.layout not in ("v1", "v3"):
        raise UsageError(f"layout {request.layout!r} cannot be written, only v1 and v3")
    if request.parts is not None and request.part_size is not None:
        raise UsageError("give the number of parts or their size, not both")
    if min(request.parts or 1, request.part_size or 1, request.jobs or 1) < 1:
        raise UsageError("the number and the size of parts, and the number of jobs, must be at least 1")


# ---------------------------------------------------------------- what is read


def _content(request: Request, kind: str, to: str | None, is_packed: bool, records: list[str]) -> Content:
    if kind in kinds.ARCHIVES:
        return Content.ARCHIVE
    if kind == kinds.FOLDER:
        return Content.FOLDER
    if kind == kinds.GRANULAR:
        return Content.COLUMN if is_column(request.source) else Content.ROWS
    if is_packed and _makes_pack(request, to) and are_one_set(records):
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
    return (
        to is not None
        and to != kinds.GRANULAR
        and format_named(to).holds_trees
        and not (request.split or request.from_)
    )


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
    if to == kinds.GRANULAR or (to is None and (request.from_ or _has_spec(request.source))):
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
    if content in (Content.ARCHIVE, Content.FOLDER):
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


def _result(request: Request, content: Content, form: Format | None) -> Result:
    """Return what is written. Raises UsageError if this source cannot become this target."""
    target, is_tree = request.target, content in (Content.ARCHIVE, Content.FOLDER)
    if form is None and not is_tree:
        return Result.DATA_SET
    if request.split and form is not None and form.part_name is None:
        raise UsageError(f"{target}: {form.title}s have no parts; use --to granular to write a data set in parts")
    if content is Content.RECORDS or (content is Content.COLUMN and form is not None and not form.holds_trees):
        return Result.FILES
    if form is None or not form.holds_trees:
        raise UsageError(f"{target}: {content.value} can only become a packed folder, whose name ends in .ffr")
    if request.split:
        raise UsageError(f"{target}: a packed folder is one file without parts; omit --parts and --part-size")
    return Result.PACK


def _refuse_target(request: Request, result: Result, form: Format | None, sources: Sources) -> tuple[str, ...]:
    """Return the files that are replaced. Raises UsageError if the target cannot be written, or has a wrong name."""
    target = request.target
    if is_url(target):
        _refuse_object(request, result, form, sources)
        return ()
    sources.refuse_inside(target)
    if request.split or result is Result.DATA_SET:
        refuse_content(target)  # even with --force: an option must not delete a folder of files
        refuse_folder(without_dots(os.fsencode(target)), target)
        return ()
    assert form is not None
    names = [target, *form.beside(target, request.layout)]
    for name in names:
        if os.path.isdir(name):
            raise UsageError(f"{name}: already exists")
        refuse_file(name)
    replaced = tuple(name for name in names if os.path.lexists(name))
    for name in replaced:
        if not request.force:
            raise UsageError(f"{name}: already exists; --force replaces it")
        sources.refuse(name)
    for name in filter(os.path.lexists, (target + ending for ending in SIDECARS)):  # they do not outlive their file
        sources.refuse(name)
        if not request.force:
            raise UsageError(f"{name}: already exists, and belongs to another {target}; --force removes it")
    if request.verity:
        refuse_verity(target)
    with no_appenders(replaced):  # checked first: refuse_target would ask to remove the table of a Bag that grows
        form.refuse_target(target, request.layout)
    return replaced


def _refuse_object(request: Request, result: Result, form: Format | None, sources: Sources) -> None:
    """Raise UsageError if the target, a URL, cannot be written."""
    target = request.target
    if request.split or result is Result.DATA_SET:
        raise UsageError(f"{target}: a store cannot put several objects in place together; write a local folder")
    assert form is not None
    if form.beside(target, request.layout):
        raise UsageError(f"{target}: {form.title}s of layout {request.layout} are two files; write layout v1")
    form.refuse_target(target, request.layout)
    if request.verify:
        raise UsageError(
            f"{target}: an object cannot be read before it is in place; omit --verify, then use fffs verify"
        )
    if request.verity:
        refuse_verity(target)
    if target in (request.source, *sources.records):
        raise UsageError(f"{target}: is the source itself, or a part of it")
    for name in form.sidecars(target):
        if object_exists(name):
            raise UsageError(f"{target}: remove {name} first: readers would take it for a part of the new object")
    if not request.force and object_exists(target):
        raise UsageError(f"{target}: already exists; --force replaces it")
