"""load_plan: the plan for a target, whatever it does."""

from __future__ import annotations

from typing import Final

from fffs.base.paths import PathLike
from fffs.base.text import plural
from fffs.cluster.part_plan import ENGINE_WORK, PartPlan, work_of
from fffs.cluster.place_of import place_of
from fffs.cluster.plan_target import absolute_target
from fffs.converting.convert_plan import ConvertPlan
from fffs.converting.kinds import COUNTED
from fffs.errors import FormatError, UsageError
from fffs.objects.names import shown
from fffs.packing.dump_plan import DumpPlan
from fffs.packing.pack_plan import PackPlan

_PLANS: Final[dict[str, type[PartPlan]]] = {plan.WORK: plan for plan in (PackPlan, ConvertPlan, DumpPlan)}


def load_plan(target: PathLike) -> PartPlan:
    """Return the plan that was made for a target and that is not committed yet.

    Raises as ``PartPlan.load``. UsageError: what is there was written by a program with Dask or Ray.
    """
    there = absolute_target(target)
    text = place_of(there).plan()
    work = work_of(text)
    if work == ENGINE_WORK:
        raise UsageError(
            f"{shown(there)}: a program writes these parts with Dask or Ray, and commits them; if it has ended, "
            f"remove them with fffs plan abort {shown(there)}"
        )
    kind = _PLANS.get(work)
    if kind is None:
        raise FormatError(f"{shown(there)}: its plan is damaged, or of another version; abort it and make a new one")
    return kind.from_json(text)


def counted(plan: PartPlan, number: int) -> str:
    """Return a number of what the parts of a plan are made of, for messages: files or records."""
    if isinstance(plan, ConvertPlan):
        return plural(number, COUNTED.get(plan.kind, "record"))
    return plural(number, "record" if isinstance(plan, DumpPlan) else "file")
