"""JobReport: what the tasks of a job did; JobWatch: follows a job while it runs."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from fffs.base.jobs import Progress
from fffs.cluster.part_task import PartResult, PartTask

SLOWEST: Final = 5  # tasks that a report names


@dataclass(frozen=True)
class FailedAttempt:
    """An attempt at a task that failed: numbers of the part and, from 1, of the attempt; what it worked on; and why."""

    part: int
    attempt: int
    shown: str
    error: str


@dataclass(frozen=True)
class JobReport:
    """What the tasks of a job did until now. Can be pickled.

    ``parts`` and ``total_bytes``: of the whole job. ``seconds``: since it began, None if that is not known.
    ``results``: of the parts that are complete, by part. ``failures``: in the order of their times; None if only the
    machines that ran the tasks know. ``error``: what ended the job, or "".

    Examples:
        >>> reports = []
        >>> fffs.pack_folder("photos", "packed", parts=2, report=reports.append)
        PackSummary(files=3, total_bytes=28)
        >>> reports[-1].parts, len(reports[-1].results), reports[-1].error
        (2, 2, '')

    """

    target: str
    parts: int
    total_bytes: int
    seconds: float | None
    results: tuple[PartResult, ...]
    failures: tuple[FailedAttempt, ...] | None = None
    error: str = ""

    @property
    def done_bytes(self) -> int:
        """The bytes of the inputs that are in complete parts."""
        return sum(result.total_bytes for result in self.results)

    @property
    def bytes_per_second(self) -> float | None:
        """How many bytes of the inputs were packed in a second, by all tasks together."""
        return self.done_bytes / max(self.seconds, 1e-9) if self.seconds is not None else None

    @property
    def left_out(self) -> tuple[str, ...]:
        """A line for each input that is in no part."""
        return tuple(line for result in self.results for line in result.left_out)

    @property
    def slowest(self) -> list[PartResult]:
        """The results of the tasks that took the longest, the slowest first."""
        return sorted(self.results, key=lambda result: -result.seconds)[:SLOWEST]

    def to_json(self) -> str:
        """Return it as one JSON document of ASCII characters."""
        failed = None if self.failures is None else Counter(failure.part for failure in self.failures)
        document = {
            "target": self.target,
            "error": self.error or None,
            "parts": self.parts,
            "complete": len(self.results),
            "total_bytes": self.total_bytes,
            "done_bytes": self.done_bytes,
            "records": sum(result.records for result in self.results),
            "size": sum(result.size for result in self.results),
            "seconds": self.seconds,
            "bytes_per_second": self.bytes_per_second,
            "task_seconds": sum(result.seconds for result in self.results),
            "slowest": [result.part for result in self.slowest],
            "left_out": self.left_out,
            "unread": sum(result.unread for result in self.results),
            "changed": sum(result.changed for result in self.results),
            "failures": None if self.failures is None else [asdict(failure) for failure in self.failures],
            "tasks": [_facts(result, failed) for result in self.results],
        }
        return json.dumps(document, indent=1)


def _facts(result: PartResult, failed: Counter[int] | None) -> dict[str, Any]:
    return {
        "part": result.part,
        "path": result.path,
        "host": result.host,
        "size": result.size,
        "records": result.records,
        "bytes": result.total_bytes,
        "seconds": result.seconds,
        "bytes_per_second": result.total_bytes / max(result.seconds, 1e-9),
        "attempts": None if failed is None else failed[result.part] + 1,
        "left_out": result.left_out,
        "unread": result.unread,
        "changed": result.changed,
    }


@dataclass
class JobWatch:
    """Follows a job and tells those who want to know. Its methods may be called from any thread.

    ``progress``: called with (bytes done, total). ``warn``: called with a line for an attempt that failed. ``report``:
    called with a JobReport when a part is complete or an attempt failed, and at the end.
    """

    progress: Progress | None = None
    warn: Callable[[str], None] | None = None
    report: Callable[[JobReport], None] | None = None
    _begin: float = field(default_factory=time.monotonic)
    _lock: Any = field(default_factory=threading.RLock)  # an interrupt may come while the main thread holds it
    _tasks: Sequence[PartTask] = ()
    _target: str = ""
    _total: int = 0
    _running: dict[int, int] = field(default_factory=dict)  # bytes of the parts that are not complete
    _results: list[PartResult] = field(default_factory=list)
    _failures: list[FailedAttempt] = field(default_factory=list)
    _done: int = 0

    def begin(self, target: str, tasks: Sequence[PartTask], total: int) -> None:
        """The tasks begin. total: bytes of all of them."""
        self._target, self._tasks, self._total = target, tasks, total
        if self.progress:
            self.progress(0, total)
        self._tell()

    def running(self, part: int, done: int) -> None:
        """An attempt at a part has done so many bytes."""
        if not self.progress:
            return
        with self._lock:
            self._running[part] = done
            done = self._done + sum(self._running.values())
        self.progress(done, self._total)

    def done(self, result: PartResult) -> None:
        """A part is complete."""
        with self._lock:
            self._running.pop(result.part, None)
            self._results.append(result)
            # As in the plan: what a compressed file has in it is more.
            self._done += self._tasks[result.part].total_bytes if self._tasks else result.total_bytes
            done = self._done + sum(self._running.values())
        if self.progress:
            self.progress(done, self._total)
        self._tell()

    def failed(self, part: int, attempt: int, error: Exception, tries: int) -> None:
        """An attempt at a part failed, of ``tries``."""
        with self._lock:
            self._running.pop(part, None)
            shown = self._tasks[part].shown
            self._failures.append(FailedAttempt(part, attempt, shown, _cause(error)))
        if self.warn and attempt < tries:  # the error of the last one ends the job
            self.warn(failure_line(f"{self._tasks[part].path} ({shown})", attempt, error, tries))
        self._tell()

    def end(self, error: BaseException | None = None) -> None:
        """The job has ended."""
        self._tell("" if error is None else _cause(error))

    def _tell(self, error: str = "") -> None:
        if not self.report:
            return
        with self._lock:
            results = tuple(sorted(self._results, key=lambda result: result.part))
            seconds, count = time.monotonic() - self._begin, len(self._tasks)
            failures = tuple(self._failures)
        self.report(JobReport(self._target, count, self._total, seconds, results, failures, error))


def failure_line(shown: str, attempt: int, error: Exception, tries: int) -> str:
    """Return a line about an attempt that failed and was not the last. shown: what it worked on."""
    return f"{shown}: attempt {attempt} of {tries} failed, and it runs again: {_cause(error)}"


def _cause(error: BaseException) -> str:
    """Return an error as one line. The text of some engines' errors is a traceback, which ends with the cause."""
    return (str(error).strip() or repr(error)).splitlines()[-1].strip()
