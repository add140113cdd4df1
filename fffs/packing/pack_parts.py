"""pack_parts: packs a folder into the parts of a set, on any executor."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fffs.base.paths import PathLike
from fffs.cluster.executors import ExecutorLike
from fffs.cluster.part_task import PartResult
from fffs.cluster.report import JobWatch
from fffs.cluster.run_plan import run_plan
from fffs.packing.pack_plan import PackPlan, check_places, make_plan_folder
from fffs.packing.pack_task import PackOptions
from fffs.packing.packer import PackSummary


def pack_parts(
    source: PathLike,
    target: PathLike,
    parts: int,
    executor: ExecutorLike,
    jobs: int | None,
    options: PackOptions,
    restart: bool,
    watch: JobWatch,
    warn: Callable[[str], None],
) -> PackSummary:
    """Plan, run all tasks and commit: ``pack_folder`` with ``parts``, whose arguments these are.

    watch: follows the job. After an error, complete parts stay for the next call; if there are none, nothing is left.
    """
    folder, there = check_places(source, target, parts)

    def plan() -> PackPlan:
        return make_plan_folder(folder, there, parts, options, restart)

    return summary_of(run_plan(there, plan, executor, jobs, watch, warn))


def summary_of(results: Iterable[PartResult]) -> PackSummary:
    """Return the summary of all parts together."""
    columns = [(result.records, result.total_bytes, result.unread, result.changed) for result in results]
    files, size, unread, changed = (sum(column) for column in zip(*columns, strict=True))
    return PackSummary(files, size).with_left_out(unread, changed)
