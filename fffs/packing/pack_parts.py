"""pack_parts: packs a folder into the parts of a set, on any executor, and goes on after it was killed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from fffs.base.paths import PathLike
from fffs.base.text import plural
from fffs.cluster.engines import executing
from fffs.cluster.executors import ExecutorLike, run_tasks
from fffs.cluster.part_task import PartResult
from fffs.cluster.place_of import place_of
from fffs.cluster.report import JobReport, JobWatch
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
    place = place_of(there)
    with place.only_driver(), executing(executor) as workers:
        plan = make_plan_folder(folder, there, parts, options, restart)
        watch.begin(there, plan.tasks, plan.total_bytes)
        try:
            results = plan.put_in_place(run_tasks(plan.tasks, workers, jobs, watch))
        except BaseException as error:
            if not any(plan.results()):
                place.remove()
            watch.end(error)
            raise
        watch.end()
    tell_left_out(results, there, warn)
    return summary_of(results)


def report_of(plan: PackPlan, results: Sequence[PartResult]) -> JobReport:
    """Return the report of a plan whose tasks ran elsewhere."""
    return JobReport(plan.target, len(plan.tasks), plan.total_bytes, None, tuple(results))


def summary_of(results: Iterable[PartResult]) -> PackSummary:
    """Return the summary of all parts together."""
    columns = [(result.records, result.total_bytes, result.unread, result.changed) for result in results]
    files, size, unread, changed = (sum(column) for column in zip(*columns, strict=True))
    return PackSummary(files, size).with_left_out(unread, changed)


def tell_left_out(results: list[PartResult], target: str, warn: Callable[[str], None]) -> None:
    """Warn of what was left out, and of hard links that became copies."""
    for result in results:
        for line in result.left_out:
            warn(line)
    if apart := sum(result.apart for result in results):
        warn(f"{target}: {plural(apart, 'file')} with hard links elsewhere: each part has a copy of its own")
