"""plan_convert: divides record files or archives into the parts of a set, which any processes can write."""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

from fffs.base.paths import PathLike, absolute_path, as_utf8
from fffs.base.together import together
from fffs.cluster.part_plan import PartPlan
from fffs.cluster.part_task import PartTask
from fffs.cluster.place_of import place_of
from fffs.cluster.plan_place import part_stem
from fffs.cluster.plan_target import absolute_target, refuse_parts
from fffs.converting import kinds
from fffs.converting.archive_parts import refuse_same_names
from fffs.converting.convert_task import ConvertTask
from fffs.converting.datasets import column_files
from fffs.converting.divide_sources import Divided, Packs, divide_files, divide_records
from fffs.converting.foreign.exports import refuse_export
from fffs.converting.foreign.imports import import_named
from fffs.converting.source_files import record_files
from fffs.errors import SourceNotFoundError, UsageError
from fffs.formats.sources import open_files, openers
from fffs.formats.table import FORMATS, Format, format_named, format_of_target, format_with
from fffs.layouts import packed
from fffs.objects.fsspec_url import is_fsspec_url, without_file_scheme
from fffs.objects.locations import is_folder, list_folder
from fffs.objects.names import is_remote, is_url, shown
from fffs.records import index_cache

ARCHIVE_NAMES: Final = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")

Sources = PathLike | Sequence[PathLike]


@dataclass(frozen=True)
class ConvertPlan(PartPlan):
    """A plan for converting record files into parts of another format, or archives into a set of packs.

    ``kind``: of the sources, as ``from_`` of ``convert``. ``to``: the format of the parts. ``names``: packed folders
    become others.

    Example: ``fffs.plan_convert``.
    """

    kind: str
    to: str
    names: bool = False
    align: bool = False
    verify: bool = False

    WORK: ClassVar[str] = "convert"
    TASK: ClassVar[type[PartTask]] = ConvertTask
    UNMARKED: ClassVar[tuple[str, ...]] = ("verify",)

    @classmethod
    def part_name(cls, target: str, number: int, total: int, options: dict[str, Any]) -> str:
        """See ``PartPlan``."""
        name = format_named(str(options["to"])).part_name
        if name is None:
            raise UsageError(f"{target}: there are no parts of the format {options['to']}")
        return name(part_stem(target), number, total)

    def _refuse_together(self, paths: Sequence[str]) -> None:
        if (self.names or self.kind in kinds.ARCHIVES) and len(paths) > 1:
            refuse_same_names(paths, [task.shown for task in self.tasks])


class ConvertRequest(NamedTuple):
    """What is to be converted, with names that all machines understand. ``to``: the name of a format."""

    paths: tuple[str, ...]
    target: str
    parts: int
    kind: str
    to: str
    packs: str
    align: bool
    verify: bool


def plan_convert(
    sources: Sources,
    target: PathLike,
    parts: int,
    *,
    from_: str | None = None,
    prefix: str | None = None,
    to: str | None = None,
    align: bool = False,
    verify: bool = False,
    restart: bool = False,
) -> ConvertPlan:
    """Plan how to convert record files, or archives, into a set of parts, on any machines.

    Records are divided into parts of equal size, which differ by less than 2 % unless single records are larger.
    Archives become packs, which together are one tree; two of them must not have the same name, other than of a folder.
    Packed folders become others with the same names, if ``to`` is "ffrecord" and ``from_`` is not given. Each archive,
    and each compressed record file, is in one part as a whole. The same sources give the same parts, whoever writes
    them. The plan is kept in ``.NAME.fffs-plan`` beside the target until ``commit`` or ``abort``, as that of
    ``plan_pack``.

    Args:
        sources: as for ``convert``: what one name stands for, or a list of names of the same kind, in their order. All
            machines must see them, and the target, under the same absolute paths. With ``from_="tar"`` or ``"zip"``, a
            folder stands for the archives in it.
        target: the folder that is made; it must be missing or empty. Or the URL of one in a store: its parts are
            written there, and count when all of them are there.
        parts: how many files it has, at most 4096. There are fewer if there are fewer records.
        from_: the kind of the sources, as for ``convert``.
        prefix: as for ``convert``.
        to: the format of the parts: "ffrecord", "tfrecord" or "ofrecord". None: the one that the target's name implies;
            for archives, "ffrecord".
        align: for packs, as for ``pack_folder``.
        verify: each part is read back and compared with its source before it has its name.
        restart: remove the parts of an unfinished plan.

    Returns:
        The plan. ``plan.tasks`` have ``run()``; ``plan.commit(results)`` makes the target appear.

    Raises:
        UsageError: the sources cannot become such parts, the target exists, or it has another unfinished plan.
        SourceNotFoundError, FormatError, RecordError, ReadError: a source is missing, damaged, or cannot be read.
        WriteError: nothing can be written beside the target, or another process is writing its parts.

    Examples:
        >>> plan = fffs.plan_convert("train.ffr", "parts", parts=2, to="tfrecord")
        >>> results = plan.commit([task.run() for task in plan.tasks])
        >>> sorted(os.listdir("parts"))
        ['parts-00000-of-00002.tfrecord', 'parts-00001-of-00002.tfrecord']

    """
    request = make_request(sources, target, parts, format_with(prefix, from_), to, align, verify, prefix)
    with place_of(request.target).only_driver():
        return make_convert_plan(request, restart)


def make_request(
    sources: Sources,
    target: PathLike,
    parts: int,
    from_: str | None,
    to: str | None,
    align: bool,
    verify: bool,
    prefix: str | None = None,
) -> ConvertRequest:
    """Return what ``plan_convert`` is asked for. Raises UsageError and others if it cannot be done."""
    there, names = absolute_target(target), _absolute_names(sources)
    refuse_export(to, shown(there))
    for kind, known in ((from_, kinds.sources()), (to, kinds.destinations())):
        if kind is not None and kind not in known:
            raise UsageError(f"there is no format {kind!r}; choose one of {', '.join(known)}")
    kind = from_ or _common_kind(names)
    if import_named(kind):
        raise UsageError(f"{shown(names[0])}: {kind} is converted by one process only; omit --executor and --restart")
    form = _format(there, kind, to)
    if kind == kinds.GRANULAR:
        names, kind = [path for name in names for path in column_files(name)], "bag"
    paths = tuple(path for name in names for path in _expand(name, kind, prefix))
    packs = packs_among(paths, kind, form, with_records=from_ is not None)
    if align and kind not in kinds.ARCHIVES and packs is not Packs.WITH_NAMES:
        raise UsageError(f"{shown(there)}: --align is for packed folders only; omit --align")
    if verify and is_url(there):
        raise UsageError(
            f"{shown(there)}: an object cannot be read before it is in place; omit --verify, then use fffs verify"
        )
    assert form.part_name is not None
    refuse_parts(there, parts, form.part_name)
    return ConvertRequest(paths, there, operator.index(parts), kind, form.name, packs.name, align, verify)


def make_convert_plan(request: ConvertRequest, restart: bool) -> ConvertPlan:
    """As ``plan_convert``, for a process that holds the lock of the target."""
    with index_cache.unused():
        divided = _divide(request)
    tasks = [{"sources": [part.to_fields() for part in sources], "total_bytes": size} for sources, size in divided]
    plan = ConvertPlan.of(
        request.target,
        tasks,
        kind=request.kind,
        to=request.to,
        names=request.packs == Packs.WITH_NAMES.name,
        align=request.align,
        verify=request.verify,
    )
    in_utf8 = request._replace(paths=tuple(map(as_utf8, request.paths)), target=as_utf8(request.target))
    text = json.dumps([ConvertPlan.WORK, *in_utf8])
    place_of(request.target).create(plan.to_json(), text, plan.fingerprint, restart, parts=plan.parts)
    return plan


# ---------------------------------------------------------------- what is read


def _absolute_names(sources: Sources) -> list[str]:
    given = [sources] if isinstance(sources, (str, bytes, os.PathLike)) else list(sources)
    if not given:
        raise SourceNotFoundError("no files to convert; name a file or folder")
    names = [without_file_scheme(os.fsdecode(name)) for name in given]
    return [name if is_remote(name) or is_fsspec_url(name) else absolute_path(name) for name in names]


def _common_kind(names: list[str]) -> str:
    found = together(kinds.kind_of_source, names, openers(names))
    for name, kind in zip(names, found, strict=True):
        if kind != found[0]:
            raise UsageError(f"{shown(name)}: is {kind}, but {shown(names[0])} is {found[0]}; convert them separately")
    return found[0]


def _expand(name: str, kind: str, prefix: str | None) -> list[str]:
    """Return the files that a source stands for, in order."""
    if kind not in kinds.ARCHIVES:
        return record_files(kind, name, prefix)
    if not is_folder(name):
        return [name]
    found = sorted(entry for entry in list_folder(name) if entry.lower().endswith(ARCHIVE_NAMES))
    if not found:
        raise SourceNotFoundError(f"{shown(name)}: no archives in this folder")
    return [os.path.join(name, entry) for entry in found]


def packs_among(paths: Sequence[str], kind: str, form: Format, *, with_records: bool) -> Packs:
    """Return what is done with packed folders among files of a kind that become files of a format."""
    if with_records:  # a tree among other records would name wrong ones, so no file that could have one is made
        return Packs.REFUSED if form.holds_trees else Packs.AS_RECORDS
    if paths and kind == form.name and form.holds_trees:
        first, *_ = open_files([paths[0]], True, kind)
        with first:
            return Packs.WITH_NAMES if packed.is_packed(first) else Packs.REFUSED
    return Packs.REFUSED


def _divide(request: ConvertRequest) -> Divided:
    if request.kind in kinds.ARCHIVES:
        return divide_files(request.paths, request.parts, "archives")
    form = format_named(request.kind)
    if any(map(form.is_compressed, request.paths)):
        return divide_files(request.paths, request.parts, "compressed files")
    return divide_records(request.paths, form, request.parts, Packs[request.packs])


# ---------------------------------------------------------------- what is written


def _format(target: str, kind: str, to: str | None) -> Format:
    """Return the format of the parts. Raises UsageError if there is none for this kind of source."""
    if kind == kinds.FOLDER:
        raise UsageError(
            f"{shown(target)}: a folder is packed into parts by fffs pack --parts (plan_pack); --from tar converts the "
            "archives in it"
        )
    if to == kinds.GRANULAR:
        raise UsageError(f"{shown(target)}: a data set is written by one process only; omit --executor and --restart")
    is_archive = kind in kinds.ARCHIVES
    form = format_named(to) if to else format_of_target(target)
    if form is None and is_archive:
        form = next(form for form in FORMATS if form.holds_trees)
    if form is None and kinds.is_records(kind):  # parts keep the format of their source
        form = format_named(kind)
    if form is None:
        raise UsageError(f"{shown(target)}: the name does not determine a format; choose one with --to")
    if is_archive and not form.holds_trees:
        raise UsageError(f"{shown(target)}: an archive can only become packed folders; omit --to")
    if form.part_name is None:
        raise UsageError(f"{shown(target)}: {form.title}s have no parts; choose another format with --to")
    return form
