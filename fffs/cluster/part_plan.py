"""PartPlan: a plan whose tasks write the parts of a set, which then appears at once."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Final

from fffs.cluster.part_task import PartResult, PartTask, refuse_incomplete
from fffs.cluster.place_of import place_of

MANIFEST: Final = "fffs parts 1"


@dataclass(frozen=True)
class PartPlan:
    """A plan for the set of parts ``target``, a folder by its absolute path or URL. Can be pickled.

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
        with place_of(self.target).only_driver():
            return self.put_in_place(results)

    def put_in_place(self, results: Iterable[PartResult] | None = None) -> list[PartResult]:
        """As ``commit``, for a process that holds the lock of the target."""
        folder = place_of(self.target)
        folder.check(self.fingerprint)
        if results is None:
            found = {task.number: task.result() for task in self.tasks}
        else:
            found = {result.part: result for result in results}
        sizes = folder.sizes()
        done = [
            refuse_incomplete(task, found.get(task.number), sizes.get(task.name), folder.part(task.name))
            for task in self.tasks
        ]
        manifest = {"format": MANIFEST, "fingerprint": self.fingerprint, "parts": [asdict(result) for result in done]}
        folder.put_in_place([task.name for task in self.tasks], json.dumps(manifest))
        return done

    def abort(self) -> None:
        """Remove all that was written. Does nothing if the plan is not there any more. Tasks that still run, fail.

        Raises:
            WriteError: something cannot be removed; or another process is writing the parts.

        """
        folder = place_of(self.target)
        with folder.only_driver():
            if folder.fingerprint() == self.fingerprint:
                folder.remove()
