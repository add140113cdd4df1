"""Plan: everything about a conversion that is decided before anything is written."""

from __future__ import annotations

import contextlib
import enum
import os
from dataclasses import dataclass

from fffs.converting import kinds
from fffs.converting.parts import cut
from fffs.converting.sources import Sources
from fffs.errors import FormatError, RecordError, UsageError
from fffs.files.atomic import CHECKSUMS
from fffs.files.atomic_folder import refuse_content
from fffs.formats.bag_writer import no_appenders
from fffs.formats.sources import open_files
from fffs.formats.table import FORMATS, Format, format_named, format_of_target
from fffs.layouts import load_source, packed
from fffs.records.index import Int64Array
from fffs.records.store import RecordStore
from fffs.tree.tree import ROOT


class Content(enum.Enum):
    """What is read from a source. The values are what messages call it."""

    ARCHIVE = "an archive"
    FOLDER = "a folder"
    ROWS = "a data set of several keys, or with sequences,"
    COLUMN = "a data set of one key"
    PACKED_ROWS = "a data set that is packed"
    RECORDS = "records"


class Result(enum.Enum):
    """What is written."""

    PACK = enum.auto()
    DATA_SET = enum.auto()
    FILES = enum.auto()


@dataclass(frozen=True)
class Request:
    """What ``fffs.convert`` was asked for; see there. ``target`` has no slash at its end."""

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

    @property
    def split(self) -> bool:
        """Whether parts were asked for."""
        return self.parts is not None or self.part_size is not None


@dataclass(frozen=True)
class Plan:
    """What becomes of a source.

    ``kind``: of the source, one of ``kinds.sources``. ``form``: of the files that are written; None for a data set.
    ``replaced``: the files that are where the result will be. ``sources``: what is read, as it was before anything was
    opened. ``warnings``: what is said before it begins.

    What only the records or rows themselves can tell is not in here: how many parts there will be, and what their
    format refuses of them. ``run`` finds that before it writes.
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
        """What the result is, one of ``kinds.destinations``."""
        return self.form.name if self.form else kinds.GRANULAR

    def cut(self, lengths: Int64Array) -> list[int]:
        """Where parts begin, but the first, by the sizes of records or rows."""
        return cut(lengths, self.request.parts, self.request.part_size)

    def part_names(self, count: int) -> list[str]:
        """What that many parts are called in their folder."""
        assert self.form is not None
        assert self.form.part_name is not None
        stem = os.path.splitext(os.path.basename(self.request.target))[0]
        return [self.form.part_name(stem, k, count) for k in range(count)]


def make_plan(request: Request) -> Plan:
    """Decide what becomes of a source, from what it is and what is asked for. Changes nothing.

    Raises:
        UsageError: such a source cannot become such a target, or not there.
        SourceNotFoundError, FormatError, ReadError: the source is not there, damaged, or cannot be read.
        SourceChangedError: it changed meanwhile.

    """
    _refuse_options(request)
    kind = request.from_ or kinds.kind_of_source(request.source)
    named = format_of_target(request.target) if request.to is None else None
    to = named.name if named else request.to
    sources = Sources(kind, request.source)
    try:
        is_packed = kinds.is_records(kind) and _is_packed(kind, sources)
        content = _content(request, kind, to, is_packed, len(sources.records) > 1)
    except (FormatError, RecordError):
        sources.refuse_changed()  # that is why
        raise
    to = to or _default(request, content)
    form = None if to == kinds.GRANULAR else format_named(to)
    result = _result(request, content, form)
    replaced = _refuse_target(request, result, form, sources)
    warnings: tuple[str, ...] = ()
    if is_packed and not request.from_ and result is Result.FILES and form and not form.holds_trees:
        warnings = (f"{request.source}: the names of its files go along as the last record, for the way back",)
    return Plan(request, kind, content, result, form, replaced, sources, warnings)


def _refuse_options(request: Request) -> None:
    for kind, known in ((request.from_, kinds.sources()), (request.to, kinds.destinations())):
        if kind is not None and kind not in known:
            raise UsageError(f"there is no format {kind!r} here; there are {', '.join(known)}")
    if request.layout not in ("v1", "v3"):
        raise UsageError(f"layout {request.layout!r} cannot be written, only v1 and v3")
    if request.parts is not None and request.part_size is not None:
        raise UsageError("parts have either a number or a size, not both")
    if min(request.parts or 1, request.part_size or 1, request.jobs or 1) < 1:
        raise UsageError("the number and the size of parts, and the number of jobs, must be at least 1")


# ---------------------------------------------------------------- what is read


def _content(request: Request, kind: str, to: str | None, is_packed: bool, several: bool) -> Content:
    if kind in kinds.ARCHIVES:
        return Content.ARCHIVE
    if kind == kinds.FOLDER:
        return Content.FOLDER
    if kind == kinds.GRANULAR:
        from fffs.converting.datasets import is_column  # granular takes long to import: for a data set at most

        return Content.COLUMN if is_column(request.source) else Content.ROWS
    if is_packed and (request.split or several):
        _refuse_torn(request, to, several=several)
    if not is_packed or request.from_ or (to not in (None, kinds.GRANULAR) and not request.split):
        return Content.RECORDS
    return Content.PACKED_ROWS


def _is_packed(kind: str, sources: Sources) -> bool:
    """Whether a packed folder is among the files."""
    if not format_named(kind).holds_trees:
        return False
    files = open_files(sources.records, True, kind)
    with contextlib.closing(RecordStore(files)):
        return any(map(packed.is_packed, files))


def _refuse_torn(request: Request, to: str | None, *, several: bool) -> None:
    """The last record of a packed folder gives names to those in front of it: it must stay alone with them."""
    what = "packed folders" if several else "a packed folder"
    if to is None or to == kinds.GRANULAR:
        return
    if format_named(to).holds_trees:
        raise UsageError(
            f"{request.source}: {what}: names would lead to other files' records; "
            + ("convert each by itself" if several else "leave the parts out")
        )
    if not request.from_:
        raise UsageError(f"{request.source}: {what}: the names would be lost; --from ffrecord takes the records")


# ---------------------------------------------------------------- what is written


def _default(request: Request, content: Content) -> str:
    """What a source becomes when neither an option nor the target's name says it."""
    if content in (Content.ARCHIVE, Content.FOLDER):
        return next(form.name for form in FORMATS if form.holds_trees)
    if content in (Content.ROWS, Content.COLUMN) or (content is Content.PACKED_ROWS and _has_spec(request.source)):
        return kinds.GRANULAR
    raise UsageError(f"{request.target}: its name does not say what it shall be; say so with --to")


def _has_spec(source: str) -> bool:
    """Whether a packed folder has at its top what a data set has: it would be one by its content alone."""
    from fffs.granular.spec import NAME  # granular takes long to import: for a data set at most

    with load_source(source) as loaded:
        return loaded.tree.lookup(ROOT, NAME.encode()) is not None


def _result(request: Request, content: Content, form: Format | None) -> Result:
    """Raises UsageError: there is no way from such a source to such a target."""
    target, is_tree = request.target, content in (Content.ARCHIVE, Content.FOLDER)
    if form is None and not is_tree:
        return Result.DATA_SET
    if request.split and form is not None and form.part_name is None:
        raise UsageError(f"{target}: {form.title}s have no parts; a data set has (--to granular)")
    if content is Content.RECORDS or (content is Content.COLUMN and form is not None and not form.holds_trees):
        return Result.FILES
    if form is None or not form.holds_trees:
        raise UsageError(f"{target}: {content.value} can only become a packed folder, whose name ends in .ffr")
    if request.split:
        raise UsageError(f"{target}: a packed folder is one file, without parts")
    return Result.PACK


def _refuse_target(request: Request, result: Result, form: Format | None, sources: Sources) -> tuple[str, ...]:
    """The files that are replaced. Raises UsageError where nothing may be written, or not under that name."""
    target = request.target
    sources.refuse_inside(target)
    if request.split or result is Result.DATA_SET:
        refuse_content(target)  # with --force as well: nobody should lose many files by an option
        return ()
    assert form is not None
    names = [target, *form.beside(target, request.layout)]
    replaced = tuple(name for name in names if os.path.lexists(name))
    for name in replaced:
        if os.path.isdir(name) or not request.force:
            raise UsageError(f"{name}: already exists{'' if os.path.isdir(name) else '; --force replaces it'}")
        sources.refuse(name)
    sources.refuse(target + CHECKSUMS)  # which goes with the file that is replaced
    with no_appenders(replaced):  # first: the table of a Bag that grows would be called one that is in the way
        form.refuse_target(target, request.layout)
    return replaced
