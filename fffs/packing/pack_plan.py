"""plan_pack: divides a folder, local or in a store, into the parts of a set, which any processes can write."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from typing import Any, Final

from fffs.base.paths import PathLike, absolute_path, named
from fffs.cluster.part_plan import PartPlan
from fffs.cluster.place_of import place_of
from fffs.cluster.plan_place import Inputs, part_stem
from fffs.errors import FormatError, UsageError
from fffs.files.targets import without_dots
from fffs.formats.ffrecord import SUFFIX
from fffs.formats.part_names import shard_name
from fffs.objects.fsspec_url import is_fsspec_url
from fffs.objects.names import is_url, parse_url, shown
from fffs.packing.division import CutPlace
from fffs.packing.left_out import LeftOut, refuse_objects
from fffs.packing.object_folder import parse_folder
from fffs.packing.object_survey import survey_objects
from fffs.packing.pack_task import PackOptions, PackTask
from fffs.packing.source_folder import open_source
from fffs.packing.survey import survey
from fffs.tree.tree import NAME_MAX

FORMAT: Final = "fffs plan 1"
PARTS_MAX: Final = 4096


@dataclass(frozen=True)
class PackPlan(PartPlan):
    """A plan for packing a folder into parts."""

    source: str
    align: bool = False
    keep_going: bool = False

    @property
    def total_bytes(self) -> int:
        """The bytes of all files; hard links count at each name."""
        return sum(task.total_bytes for task in self.tasks if isinstance(task, PackTask))

    def to_json(self) -> str:
        """Return the plan as text of ASCII characters. Names that are not UTF-8 have surrogates, as of ``fsdecode``."""
        tasks = [_fields(task) for task in self.tasks if isinstance(task, PackTask)]
        plan = {
            "format": FORMAT,
            "work": "pack",
            "source": self.source,
            "target": self.target,
            "align": self.align,
            "keep_going": self.keep_going,
            "fingerprint": self.fingerprint,
            "tasks": tasks,
        }
        return json.dumps(plan)

    @classmethod
    def from_json(cls, text: str) -> PackPlan:
        """Return the plan of a text. Raises FormatError if it is none, or damaged."""
        try:
            fields = json.loads(text)
            if (fields["format"], fields["work"]) != (FORMAT, "pack"):
                raise FormatError(f"not a plan of this version for packing, but {fields['format']!a:.40}")
            source, target = str(fields["source"]), str(fields["target"])
            options = PackOptions(bool(fields["align"]), bool(fields["keep_going"]))
            plan = _plan(source, target, options, [_unfielded(task) for task in fields["tasks"]])
            intact = plan.fingerprint == fields["fingerprint"]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            if isinstance(error, FormatError):
                raise
            raise FormatError(f"not a plan for packing, or a damaged one ({error!a:.80})") from error
        if not intact:
            raise FormatError("a damaged plan: its fingerprint differs; make a new one")
        return plan

    @classmethod
    def load(cls, target: PathLike) -> PackPlan:
        """Return the plan that ``plan_pack`` made for a target and that is not committed yet.

        Raises:
            SourceNotFoundError: there is none. FormatError: it is damaged. UsageError, ReadError: it cannot be read.

        """
        return cls.from_json(place_of(_absolute(named(target, "the target"))).plan())


def plan_pack(
    source: PathLike,
    target: PathLike,
    parts: int,
    *,
    align: bool = False,
    keep_going: bool = False,
    restart: bool = False,
) -> PackPlan:
    """Plan how to pack a folder into a set of parts, on any machines.

    The parts are about equally large, unless single files are larger; a folder is divided only if that is necessary.
    The same folder gives the same parts, whoever writes them. The plan is kept in ``.NAME.fffs-plan`` beside the
    target until ``commit`` or ``abort``: a plan for the same state of the folder goes on with it, and its tasks leave
    complete parts as they are.

    A folder's mode and time are in each part that has something of it. Hard links within a part stay links; a file
    whose names lie in several parts is in each of them. Otherwise as ``pack_folder``.

    Args:
        source: the folder. All machines must see it, and the target, under the same absolute paths. Or the URL of a
            folder of a store, which ends with a slash; it is listed once, and objects that are added later are not
            packed.
        target: the folder that is made, outside of ``source``; it must be missing or empty. Or the URL of one in a
            store: its parts are written there, and count when all of them are there.
        parts: how many files it has, at most 4096. There are fewer if there are fewer names.
        align: as for ``pack_folder``.
        keep_going: as for ``pack_folder``. What changed after the plan was made is packed as it is then, and its part
            counts it as changed. ``PartResult`` counts what each task left out.
        restart: remove the parts of an unfinished plan.

    Returns:
        The plan. ``plan.tasks`` have ``run()``; ``plan.commit(results)`` makes the target appear.

    Raises:
        UsageError: the target exists or lies inside the folder, or an unfinished plan for it is another one.
        SourceNotFoundError, ReadError, SourceChangedError: as ``pack_folder``.
        WriteError: nothing can be written beside the target, or another process is writing its parts.

    """
    folder, there = check_places(source, target, parts)
    with place_of(there).only_driver():
        return make_plan_folder(folder, there, parts, PackOptions(align, keep_going), restart)


def remove_plan(target: PathLike) -> None:
    """Remove the plan for a target and all that was written, whatever state it is in.

    Raises:
        SourceNotFoundError: there is none. UsageError: it may be another user's.
        WriteError: it cannot be removed, or another process is writing the parts.

    """
    folder = place_of(_absolute(named(target, "the target")))
    with folder.only_driver():
        folder.refuse_strange()
        folder.remove()


def _absolute(target: str) -> str:
    """Return a target as plans name it: by its absolute path without dots, or its URL without a slash at the end."""
    if is_fsspec_url(target) or (is_url(target) and parse_url(target).is_web):
        raise UsageError(f"{shown(target)}: parts can only be written to a local folder, or to s3://, gs:// or az://")
    if is_url(target):
        return parse_url(target).url.rstrip("/")
    return os.fsdecode(without_dots(os.fsencode(absolute_path(target))))


def check_places(source: PathLike, target: PathLike, parts: int) -> tuple[str, str]:
    """Return both as absolute paths or URLs.

    Raises UsageError, WriteError and those of stores if nothing can be packed from one to the other.
    """
    folder, there = named(source, "the folder"), _absolute(named(target, "the target"))
    if is_fsspec_url(folder):
        raise UsageError(
            f"{shown(folder)}: only local folders, and those of s3://, gs:// and az://, can be packed into parts"
        )
    if not 1 <= parts <= PARTS_MAX:
        raise UsageError(f"{shown(there)}: the number of parts must be from 1 to {PARTS_MAX}, not {parts}")
    if len(os.fsencode(_part_name(there, 0, parts))) > NAME_MAX:
        raise UsageError(f"{shown(there)}: this name is too long for the names of parts; choose a shorter one")
    place_of(there).refuse_content()
    folder = parse_folder(folder).url if is_url(folder) else absolute_path(folder)
    _refuse_inside(folder, there)
    return folder, there


def _refuse_inside(folder: str, target: str) -> None:
    """Raise UsageError if the target lies inside the folder that is packed."""
    if is_url(folder) != is_url(target):
        return
    if not is_url(folder):
        folder, target_folder = os.path.realpath(folder), os.path.realpath(os.path.dirname(target))
    else:
        target_folder = target
    if f"{target_folder}/".startswith(f"{folder.rstrip('/')}/"):
        raise UsageError(f"{shown(target)}: lies inside the folder that is packed; name a target outside of it")


def make_plan_folder(source: str, target: str, parts: int, options: PackOptions, restart: bool) -> PackPlan:
    """As ``plan_pack``, for absolute paths that were checked, and a process that holds the lock of the target."""
    refuse_objects(source, options.keep_going)
    request = json.dumps(["pack", source, target, parts, *options])

    def create(places: list[CutPlace], inputs: Inputs = ()) -> PackPlan:
        plan = _plan(source, target, options, [_cut(places, k) for k in range(len(places) - 1)])
        place_of(target).create(plan.to_json(), request, plan.fingerprint, restart, inputs)
        return plan

    if is_url(source):
        with survey_objects(source, parts, None if is_url(target) else os.path.dirname(target)) as found:
            return create(found.places, found.lists())
    # The tasks name what they leave out.
    with open_source(os.fsencode(source), LeftOut() if options.keep_going else None) as opened:
        places = survey(opened, parts)
    return create(places)


# ---------------------------------------------------------------- tasks

_Cut = dict[str, Any]  # the fields of a PackTask that the division determines


def _cut(places: list[CutPlace], k: int) -> _Cut:
    begin, end = places[k], places[k + 1]
    return {
        "start": begin.path,
        "stop": end.path,
        "names": end.names - begin.names,
        "total_bytes": end.size - begin.size,
        "digest": (end.digest - begin.digest) % 2**64,
    }


def _plan(source: str, target: str, options: PackOptions, cuts: list[_Cut]) -> PackPlan:
    names = [_part_name(target, k, len(cuts)) for k in range(len(cuts))]
    marks = [_hash([FORMAT, "pack", *options, name, _texts(cut)]) for name, cut in zip(names, cuts, strict=True)]
    fingerprint = _hash(marks)
    tasks = [
        PackTask(k, target, names[k], fingerprint, marks[k], source, **options._asdict(), **cut)
        for k, cut in enumerate(cuts)
    ]
    return PackPlan(target, fingerprint, tuple(tasks), source, *options)


def _part_name(target: str, number: int, total: int) -> str:
    return shard_name(part_stem(target), number, total, SUFFIX)


def _hash(values: object) -> str:
    return hashlib.blake2b(json.dumps(values).encode("ascii"), digest_size=16).hexdigest()


def _texts(cut: _Cut) -> _Cut:
    """Return the fields as JSON can hold them: 64 bits as text, because other readers of JSON lose some of a number."""
    start, stop = (cut[name].decode("utf-8", "surrogateescape") for name in ("start", "stop"))
    return {**cut, "start": start, "stop": stop, "digest": f"{cut['digest']:016x}"}


def _fields(task: PackTask) -> _Cut:
    return _texts({name: getattr(task, name) for name in ("start", "stop", "names", "total_bytes", "digest")})


def _unfielded(texts: _Cut) -> _Cut:
    start, stop = (str(texts[name]).encode("utf-8", "surrogateescape") for name in ("start", "stop"))
    names, size = int(texts["names"]), int(texts["total_bytes"])
    return {"start": start, "stop": stop, "names": names, "total_bytes": size, "digest": int(texts["digest"], 16)}
