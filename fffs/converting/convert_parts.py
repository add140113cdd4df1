"""convert_parts: converts sources into the parts of a set, on any executor."""

from __future__ import annotations

from collections.abc import Callable

from fffs.cluster.executors import ExecutorLike
from fffs.cluster.part_task import PartResult
from fffs.cluster.report import JobWatch
from fffs.cluster.run_plan import run_plan
from fffs.converting.convert_plan import ConvertPlan, ConvertRequest, make_convert_plan


def convert_parts(
    request: ConvertRequest,
    executor: ExecutorLike,
    jobs: int | None,
    restart: bool,
    watch: JobWatch,
    warn: Callable[[str], None],
) -> list[PartResult]:
    """Plan, run all tasks and commit: ``convert`` with ``parts``. Arguments and errors are those of ``run_plan``."""

    def plan() -> ConvertPlan:
        return make_convert_plan(request, restart)

    return run_plan(request.target, plan, executor, jobs, watch, warn)
