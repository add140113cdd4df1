"""run_plan: makes a plan, runs its tasks on any executor, and commits; goes on after it was killed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from fffs.base.text import plural
from fffs.cluster.engines import executing
from fffs.cluster.executors import ExecutorLike, run_tasks
from fffs.cluster.part_plan import PartPlan
from fffs.cluster.part_task import PartResult
from fffs.cluster.place_of import place_of
from fffs.cluster.plan_place import PlanPlace
from fffs.cluster.report import JobReport, JobWatch


def run_plan(
    target: str,
    make: Callable[[], PartPlan],
    executor: ExecutorLike,
    jobs: int | None,
    watch: JobWatch,
    warn: Callable[[str], None],
) -> list[PartResult]:
    """Plan, run all tasks and commit. Returns the results, by part.

    After an error, complete parts stay for the next call; if there are none, nothing is left.

    Args:
        target: as ``absolute_target`` returns it, and checked.
        make: makes the plan; called while this process holds the lock of the target.
        executor: as for ``run_tasks``, or the name of one.
        jobs: as for ``PartTask.run``.
        watch: follows the job.
        warn: called with a line for each input that was left out.

    """
    place = place_of(target)
    with executing(executor) as workers, place.only_driver():
        plan = make()
        watch.begin(target, plan.tasks, plan.total_bytes)
        try:
            results = plan.put_in_place(run_tasks(plan.tasks, workers, jobs, watch))
        except BaseException as error:
            place.clean_up(error, partial(_remove_useless, place, plan))
            watch.end(error)
            raise
        watch.end()
    tell_left_out(results, target, warn)
    return results


def _remove_useless(place: PlanPlace, plan: PartPlan) -> None:
    if not any(plan.results()):
        place.remove_plan(plan.fingerprint)


def report_of(plan: PartPlan, results: Sequence[PartResult]) -> JobReport:
    """Return the report of a plan whose tasks ran elsewhere."""
    return JobReport(plan.target, len(plan.tasks), plan.total_bytes, None, tuple(results))


def tell_left_out(results: list[PartResult], target: str, warn: Callable[[str], None]) -> None:
    """Warn of what was left out, and of hard links that became copies."""
    for result in results:
        for line in result.left_out:
            warn(line)
    if apart := sum(result.apart for result in results):
        warn(f"{target}: {plural(apart, 'file')} with hard links elsewhere: each part has a copy of its own")
