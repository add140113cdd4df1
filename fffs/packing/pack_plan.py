"""plan_pack: divides a folder, local or in a store, into the parts of a set, which any processes can write."""

from __future__ import annotations

import itertools
import json
import operator
import os
from dataclasses import dataclass
from typing import Any, ClassVar

from fffs.base.paths import PathLike, absolute_path, as_utf8, named
from fffs.cluster.part_plan import PartPlan
from fffs.cluster.part_task import PartTask
from fffs.cluster.place_of import place_of
from fffs.cluster.plan_place import Inputs, part_stem
from fffs.cluster.plan_target import absolute_target, refuse_inside, refuse_parts
from fffs.errors import UsageError
from fffs.formats.part_names import ffrecord_shard
from fffs.objects.fsspec_url import is_fsspec_url
from fffs.objects.names import is_url, shown
from fffs.packing.division import CutPlace
from fffs.packing.left_out import LeftOut, refuse_objects
from fffs.packing.object_folder import parse_folder
from fffs.packing.object_survey import survey_objects
from fffs.packing.pack_task import PackOptions, PackTask, cut_fields
from fffs.packing.source_folder import open_source
from fffs.packing.survey import survey


@dataclass(frozen=True)
class PackPlan(PartPlan):
    """A plan for packing a folder into parts. Hard links count at each name in its ``total_bytes``.

    Example: ``fffs.plan_pack``.
    """

    source: str
    align: bool = False
    keep_going: bool = False

    WORK: ClassVar[str] = "pack"
    TASK: ClassVar[type[PartTask]] = PackTask
    UNMARKED: ClassVar[tuple[str, ...]] = ("source",)
    PATHS: ClassVar[tuple[str, ...]] = ("source",)

    @classmethod
    def part_name(cls, target: str, number: int, total: int, options: dict[str, Any]) -> str:
        """See ``PartPlan``."""
        return ffrecord_shard(part_stem(target), number, total)


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

    Examples:
        >>> plan = fffs.plan_pack("photos", "packed", parts=2)
        >>> results = plan.commit([task.run() for task in plan.tasks])
        >>> sorted(os.listdir("packed"))
        ['packed-00000-of-00002.ffr', 'packed-00001-of-00002.ffr']

    """
    folder, there = check_places(source, target, parts)
    with place_of(there).only_driver():
        return make_plan_folder(folder, there, parts, PackOptions(align, keep_going), restart)


def check_places(source: PathLike, target: PathLike, parts: int) -> tuple[str, str]:
    """Return both as absolute paths or URLs.

    Raises UsageError, WriteError and those of stores if nothing can be packed from one to the other.
    """
    folder, there = named(source, "the folder"), absolute_target(target)
    if is_fsspec_url(folder):
        raise UsageError(
            f"{shown(folder)}: only local folders, and those of s3://, gs:// and az://, can be packed into parts"
        )
    refuse_parts(there, parts, ffrecord_shard)
    folder = parse_folder(folder).url if is_url(folder) else absolute_path(folder)
    refuse_inside(folder, there)
    return folder, there


def make_plan_folder(source: str, target: str, parts: int, options: PackOptions, restart: bool) -> PackPlan:
    """As ``plan_pack``, for absolute paths that were checked, and a process that holds the lock of the target."""
    refuse_objects(source, options.keep_going)
    request = json.dumps(["pack", as_utf8(source), as_utf8(target), operator.index(parts), *options])

    def create(places: list[CutPlace], inputs: Inputs = ()) -> PackPlan:
        cuts = [cut_fields(*ends) for ends in itertools.pairwise(places)]
        plan = PackPlan.of(target, cuts, source=source, **options._asdict())
        place_of(target).create(plan.to_json(), request, plan.fingerprint, restart, inputs, parts=plan.parts)
        return plan

    if is_url(source):
        with survey_objects(source, parts, None if is_url(target) else os.path.dirname(target)) as found:
            return create(found.places, found.lists())
    # The tasks name what they leave out.
    with open_source(os.fsencode(source), LeftOut() if options.keep_going else None) as opened:
        places = survey(opened, parts)
    return create(places)
