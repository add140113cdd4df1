"""plan_dump: divides a data set into the parts of a set of record files, which any processes can write."""

from __future__ import annotations

import itertools
import json
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from fffs.base.paths import PathLike, as_utf8
from fffs.cluster.part_plan import PartPlan
from fffs.cluster.part_task import PartTask
from fffs.cluster.place_of import place_of
from fffs.cluster.plan_place import part_stem
from fffs.cluster.plan_target import absolute_target, refuse_parts
from fffs.formats.part_names import ffrecord_shard
from fffs.packing.dump import Items, guess_size
from fffs.packing.dump_task import DumpTask
from fffs.packing.named_items import load_items, name_of


@dataclass(frozen=True)
class DumpPlan(PartPlan):
    """A plan for writing a data set as parts. ``dataset``: its name, as of ``plan_dump``. ``items``: how many it has.

    Can be pickled.

    Example: ``fffs.plan_dump``.
    """

    dataset: str
    items: int

    WORK: ClassVar[str] = "dump"
    TASK: ClassVar[type[PartTask]] = DumpTask

    @classmethod
    def part_name(cls, target: str, number: int, total: int, options: dict[str, Any]) -> str:
        """See ``PartPlan``."""
        return ffrecord_shard(part_stem(target), number, total)


def plan_dump(dataset: str | Callable[[], Items], target: PathLike, parts: int, *, restart: bool = False) -> DumpPlan:
    """Plan how to write the items of a data set into a set of record files, on any machines.

    The plan has the name of the data set, and each task imports it where it runs: this needs the module there. All
    parts have the same number of items, or one more. The plan is kept in ``.NAME.fffs-plan`` beside the target until
    ``commit`` or ``abort``, as that of ``plan_pack``.

    Args:
        dataset: a function of a module, without arguments, which returns the data set: an object with ``len()`` and
            ``[i]``, whose items are bytes, arrays or other contiguous buffers. Or the name of one, or of the data set:
            "package.module:name". It must return the same items in each process.
        target: the folder that is made; it must be missing or empty. Or the URL of one in a store: its parts are
            written there, and count when all of them are there.
        parts: how many files it has, at most 4096. There are fewer if there are fewer items.
            ``fffs.utils.plan_parts(total_bytes)`` returns how many the authors of the format recommend.
        restart: remove the parts of an unfinished plan.

    Returns:
        The plan. ``plan.tasks`` have ``run()``; ``plan.commit(results)`` makes the target appear. ``total_bytes`` is
        estimated from a few items.

    Raises:
        UsageError: there is no such data set, the target exists, or it has another unfinished plan.
        WriteError: nothing can be written beside the target, or another process is writing its parts.
        Also what the data set raises.

    Examples:
        >>> plan = fffs.plan_dump("mydata:samples", "packed", parts=2)  # mydata.py has: samples = [b"one", b"two"]
        >>> results = plan.commit([task.run() for task in plan.tasks])
        >>> sorted(os.listdir("packed"))
        ['packed-00000-of-00002.ffr', 'packed-00001-of-00002.ffr']

    """
    name, there = name_of(dataset), absolute_target(target)
    refuse_parts(there, parts, ffrecord_shard)
    parts = operator.index(parts)
    items = load_items(name)
    count, size = len(items), guess_size(items)
    divided = max(min(parts, count), 1)
    cuts = [count * k // divided for k in range(divided + 1)]
    tasks = [
        {"start": start, "stop": stop, "total_bytes": size * (stop - start) // max(count, 1)}
        for start, stop in itertools.pairwise(cuts)
    ]
    plan = DumpPlan.of(there, tasks, dataset=name, items=count)
    place = place_of(there)
    with place.only_driver():
        request = json.dumps([DumpPlan.WORK, name, as_utf8(there), parts])
        place.create(plan.to_json(), request, plan.fingerprint, restart, parts=plan.parts)
    return plan
