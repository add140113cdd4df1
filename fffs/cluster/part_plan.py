"""PartPlan: a plan whose tasks write the parts of a set, which then appears at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fffs.cluster.part_task import PartResult, PartTask, refuse_incomplete
from fffs.cluster.plan_folder import PlanFolder


@dataclass(frozen=True)
class PartPlan:
    """A plan for the set of parts ``target``, a folder by its absolute path. Can be pickled.

    ``fingerprint`` is a hash of how the work is divided, and of what the plan saw of the source. ``tasks`` may run in
    any order, in any processes.
    """

    target: str
    fingerprint: str
    tasks: tuple[PartTask, ...]

    def results(self) -> list[PartResult | None]:
        """Return the result of each task that has run, on whichever machine. Raises ReadError."""
        return [task.result() for task in self.tasks]

    def commit(self, results: Iterable[PartResult] | None = None) -> list[PartResult]:
        """Let the target appear with all parts, at once, and remove what the plan needed.

        Args:
            results: of all tasks, in any order; None: those that the tasks left beside the target.

        Returns:
            The results, by part.

        Raises:
            UsageError: a part is missing; the message names it. The target exists, or the plan was committed already.
            WriteError: it could not be written; or another process is writing the parts.

        """
        with PlanFolder(self.target).only_driver():
            return self.put_in_place(results)

    def put_in_place(self, results: Iterable[PartResult] | None = None) -> list[PartResult]:
        """As ``commit``, for a process that holds the lock of the target."""
        folder = PlanFolder(self.target)
        folder.check(self.fingerprint)
        if results is None:
            found = {task.number: task.result() for task in self.tasks}
        else:
            found = {result.part: result for result in results}
        done = [refuse_incomplete(task, found.get(task.number)) for task in self.tasks]
        folder.put_in_place(task.name for task in self.tasks)
        return done

    def abort(self) -> None:
        """Remove all that was written. Does nothing if the plan is not there any more. Tasks that still run, fail.

        Raises:
            WriteError: something cannot be removed; or another process is writing the parts.

        """
        folder = PlanFolder(self.target)
        with folder.only_driver():
            if folder.fingerprint() == self.fingerprint:
                folder.remove()
