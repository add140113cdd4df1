"""plan_verify: divides the verification of a source into tasks, one for each file, which any process can run."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from fffs.base.importing import importing
from fffs.base.jobs import Progress
from fffs.base.paths import PathLike, as_utf8, named, of_utf8
from fffs.cluster.engines import executing
from fffs.cluster.executors import Call, ExecutorLike, run_calls
from fffs.cluster.report import failure_line
from fffs.errors import FormatError, UsageError
from fffs.formats.sources import expand_sources
from fffs.objects.locations import is_folder
from fffs.objects.names import is_remote, shown
from fffs.packing.verify import BadRecord
from fffs.packing.verify_source import Findings, verify_source

FORMAT: Final = "fffs verify plan 1"

log = logging.getLogger("fffs.verify")


@dataclass(frozen=True)
class VerifyTask:
    """Verifies a file, or a data set of several files, by its absolute path or URL. Can be pickled.

    ``size``: of a local file in bytes, otherwise 0.
    """

    number: int
    path: str
    format: str | None
    size: int

    def run(self) -> VerifyResult:
        """Verify it, in any process that sees it under its path, also several times. Raises as ``fffs verify``."""
        return VerifyResult(self.number, verify_source([self.path], self.format))


@dataclass(frozen=True)
class VerifyResult:
    """What was found in the file of a task. Can be pickled."""

    number: int
    findings: Findings


@dataclass(frozen=True)
class VerifyPlan:
    """A plan for verifying a source. Can be pickled, and is kept nowhere: who runs the tasks collects their results.

    Example: ``fffs.plan_verify``.
    """

    tasks: tuple[VerifyTask, ...]

    @property
    def total_bytes(self) -> int:
        """The bytes of all local files."""
        return sum(task.size for task in self.tasks)

    def to_json(self) -> str:
        """Return the plan as text of ASCII characters, which means the same in every locale."""
        tasks = [{**asdict(task), "path": as_utf8(task.path)} for task in self.tasks]
        return json.dumps({"format": FORMAT, "tasks": tasks})

    @classmethod
    def from_json(cls, text: str) -> VerifyPlan:
        """Return the plan of a text. Raises FormatError if it is none."""
        try:
            plan = json.loads(text)
            if plan["format"] != FORMAT:
                raise FormatError(f"not a plan of this version to verify, but {plan['format']!a:.40}")
            return cls(tuple(VerifyTask(**{**task, "path": of_utf8(str(task["path"]))}) for task in plan["tasks"]))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            if isinstance(error, FormatError):
                raise
            raise FormatError(f"not a plan to verify, or a damaged one ({error!a:.80})") from error

    def commit(self, results: Iterable[VerifyResult]) -> Findings:
        """Return what was found in all files; records are numbered through them.

        results: of all tasks, in any order. Raises UsageError: one is missing; the message names its file.
        """
        found = {result.number: result.findings for result in results}
        for task in self.tasks:
            if task.number not in found:
                raise UsageError(f"{shown(task.path)}: was not verified; run task {task.number} first")
        return _join([found[task.number] for task in self.tasks])

    def abort(self) -> None:
        """Do nothing: the tasks write nothing."""


def plan_verify(source: PathLike | Sequence[PathLike], *, format: str | None = None) -> VerifyPlan:
    """Plan how to verify the files of a source, on any machines: ``fffs verify`` with an executor.

    Args:
        source: a file, a folder, a URL, or a list of them, as for ``fffs.open``. All machines must see it under the
            same absolute name.
        format: as for ``fffs.open``.

    Returns:
        The plan. ``plan.tasks`` have ``run()``; ``plan.commit(results)`` returns what was found in all files:
        ``records`` and ``size`` (how many, and their bytes), ``unverifiable`` (how many have no checksums), and
        ``bad``, a list of the damaged ones with ``source``, ``record``, ``name`` and ``problem``.

    Raises:
        SourceNotFoundError, UsageError, FormatError, ReadError: the files cannot be listed.

    Examples:
        >>> plan = fffs.plan_verify("train.ffr")
        >>> findings = plan.commit([task.run() for task in plan.tasks])
        >>> findings.records, findings.bad
        (3, [])

    """
    given = [source] if isinstance(source, (str, bytes, os.PathLike)) else list(source)
    names = [file for one in given for file in _files_of(named(one, "the source"), format)]
    paths = [name if is_remote(name) else os.path.abspath(name) for name in names]
    return VerifyPlan(tuple(VerifyTask(k, path, format, _size(path)) for k, path in enumerate(paths)))


def verify_files(
    paths: Sequence[PathLike],
    form: str | None,
    executor: ExecutorLike,
    progress: Progress | None = None,
    warn: Callable[[str], None] = log.warning,
) -> Findings:
    """As ``verify_source``, for the record files and data sets of a source one by one, on an executor.

    warn: called with a line for each attempt at a file that failed and is made again.

    Raises WorkerError in addition: the worker of a file died three times; the message names it.
    """
    plan = plan_verify(paths, format=form)
    with executing(executor) as workers:
        if workers is None:
            return verify_source([os.fsdecode(path) for path in paths], form, progress)
        calls = [Call(run_task, (task,), task.path) for task in plan.tasks]

        def failed(number: int, attempt: int, error: Exception, tries: int) -> None:
            if attempt < tries:
                warn(failure_line(plan.tasks[number].path, attempt, error, tries))

        found: list[VerifyResult] = []
        done = 0
        with contextlib.closing(run_calls(calls, workers, wrap=True, failed=failed)) as results:
            for number, result in results:
                found.append(result)
                done += plan.tasks[number].size
                if progress:
                    progress(done, plan.total_bytes)
    return plan.commit(found)


def run_task(task: VerifyTask) -> VerifyResult:
    """Run a task: a function of a module, which every engine can call in another process."""
    return task.run()


def _files_of(path: str, form: str | None) -> list[str]:
    """Return the files that are verified one by one. The files of a data set belong together."""
    if form is None and is_folder(path):
        with importing:
            from fffs.granular.shards import data_set_folders
        if data_set_folders(path):
            return [path]
    return expand_sources(path)


def _size(name: str) -> int:
    """Return the size of a local file, for progress; opening it says what is wrong."""
    with contextlib.suppress(OSError):
        return 0 if is_remote(name) else os.path.getsize(name)
    return 0


def _join(found: Sequence[Findings]) -> Findings:
    """Return what was found in all files; records are numbered through them."""
    bad: list[BadRecord] = []
    first = 0
    for one in found:
        bad += [replace(entry, number=entry.number + first) for entry in one.bad]
        first += one.records
    return Findings(
        first,
        sum(one.size for one in found),
        sum(one.unverifiable for one in found),
        bad,
        {path: digest for one in found for path, digest in one.digests.items()},
        [name for one in found for name in one.stale],
    )
