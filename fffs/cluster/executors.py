"""Executors: where tasks run, and again when a worker dies."""

from __future__ import annotations

import contextlib
import math
import secrets
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Final, NoReturn, Protocol

from fffs.cluster.part_task import PartResult, PartTask, run_task
from fffs.cluster.processes import Processes
from fffs.cluster.report import JobWatch
from fffs.errors import FffsError, FormatError, SourceChangedError, SourceNotFoundError, UsageError, WorkerError

TRIES: Final = 3
LOOK_EVERY: Final = 5.0  # seconds
LONELY: Final = 2  # times as long as Dask tries to connect
_FINAL: Final = (UsageError, SourceChangedError, SourceNotFoundError, FormatError)
"""Errors that would come again."""


class Submits(Protocol):
    """What runs tasks: ``concurrent.futures.Executor``, or another object with this method, as of submitit or Dask."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Return an object whose ``result()`` waits for the function's, and raises its exception."""


ExecutorLike = Submits | str | None
"""An executor, or its name (``fffs.cluster.engines``), or None: one task after the other, here."""


@dataclass(frozen=True)
class Call:
    """A call of a function of a module. ``shown``: what it works on, for messages."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    shown: str


FailureListener = Callable[[int, int, Exception, int], None]
"""Called with the number of a call, that of the attempt from 1, its error, and how many attempts there are at most."""


def run_calls(
    calls: Sequence[Call],
    executor: Submits,
    tries: int = TRIES,
    *,
    wrap: bool = False,
    failed: FailureListener | None = None,
) -> Generator[tuple[int, Any], None, None]:
    """Submit all calls, each again if it fails, and yield the number and result of each as they come.

    Args:
        calls: any of them may run several times.
        executor: where they run. It is not shut down.
        tries: how often a call is tried.
        wrap: exceptions that are not of fffs come from the executor, and the last one becomes a WorkerError.
        failed: called when an attempt failed.

    Raises:
        WorkerError: the worker of a call died, or the executor failed, ``tries`` times; the message names the input.
        Also what the functions raise. No call waits any more then, and those that run on executors of
        ``concurrent.futures`` have ended.

    """
    attempts = _Attempts(calls, executor, tries, wrap, failed)
    try:
        attempts.begin()
        yield from attempts.results()
    except BaseException as error:
        attempts.cancel(wait_for_them=isinstance(error, Exception))
        raise


def run_tasks(
    tasks: Sequence[PartTask],
    executor: Submits | None = None,
    jobs: int | None = None,
    watch: JobWatch | None = None,
) -> list[PartResult]:
    """Run tasks, each up to TRIES times if its worker dies or the system fails, and return the results by part.

    Args:
        tasks: all of a plan, by part.
        executor: as for ``run_calls``. None: in this process, one after the other.
        jobs: as for ``PartTask.run``.
        watch: follows the job. It hears of bytes while a task runs in this process or in ``Processes``, and otherwise
            when a task is done.

    Raises as ``run_calls``.

    """
    watch = watch or JobWatch()
    results: list[PartResult] = []
    found = _here(tasks, jobs, watch) if executor is None else _anywhere(tasks, executor, jobs, watch)
    with contextlib.closing(found):
        for result in found:
            watch.done(result)
            results.append(result)
    return sorted(results, key=lambda result: result.part)


_Results = Generator[PartResult, None, None]


def _here(tasks: Sequence[PartTask], jobs: int | None, watch: JobWatch) -> _Results:
    for task in tasks:
        yield task.run(jobs, lambda done, _, part=task.number: watch.running(part, done))  # type: ignore[misc]


def _anywhere(tasks: Sequence[PartTask], executor: Submits, jobs: int | None, watch: JobWatch) -> _Results:
    calls = [Call(run_task, (task, jobs), f"{task.shown}: {task.path}") for task in tasks]
    with contextlib.ExitStack() as stack:
        if isinstance(executor, Processes):
            stack.enter_context(executor.heard_by(lambda message: watch.running(*message)))
        found = run_calls(calls, executor, wrap=True, failed=watch.failed)
        for _, result in stack.enter_context(contextlib.closing(found)):
            yield result


class _Attempts:
    """The attempts that are waiting or running on an executor."""

    def __init__(
        self, calls: Sequence[Call], executor: Submits, tries: int, wrap: bool, failed: FailureListener | None
    ) -> None:
        self._calls, self._executor, self._tries, self._wrap = calls, executor, tries, wrap
        self._failed = failed
        self._running: dict[Any, tuple[int, int]] = {}  # future -> number of the call, and of the attempt
        self._done: SimpleQueue[Any] = SimpleQueue()  # futures of ``concurrent.futures``
        self._others = 0  # how many are other futures
        self._lonely = math.inf  # since when Dask has no scheduler, as far as is known

    def begin(self) -> None:
        """Submit all calls."""
        for number in range(len(self._calls)):
            self._submit(number, 1)

    def _submit(self, number: int, attempt: int) -> None:
        call = self._calls[number]
        try:
            future = self._executor.submit(_call, *call.args, call.fn, secrets.token_hex(8))
        except WorkerError as error:
            raise WorkerError(f"{call.shown}: {error}") from error
        except Exception as error:  # a pool that a dead worker has broken
            raise WorkerError(f"{call.shown}: the executor failed: {error!r}") from error
        self._running[future] = number, attempt
        if isinstance(future, Future):
            future.add_done_callback(self._done.put)
        else:
            self._others += 1

    def results(self) -> Iterator[tuple[int, Any]]:
        """Yield numbers and results as they come, until all calls are done. Raises as ``run_calls``."""
        while self._running:
            future = self._next()
            number, attempt = self._running.pop(future)
            try:
                yield number, future.result()
            except _FINAL:
                raise
            except Exception as error:
                if self._failed:
                    self._failed(number, attempt, error, self._tries)
                if attempt == self._tries:
                    self._fail(number, error)
                self._submit(number, attempt + 1)

    def _fail(self, number: int, error: Exception) -> NoReturn:
        """Raise the error of the last attempt: one that names the input."""
        if isinstance(error, WorkerError) or (self._wrap and not isinstance(error, FffsError)):
            often = f"failed in {self._tries} attempts: " if self._tries > 1 else ""
            raise WorkerError(f"{self._calls[number].shown}: {often}{str(error) or repr(error)}") from error
        raise error

    def _next(self) -> Any:
        """Return one that is done. Others than those of ``concurrent.futures`` are waited for in order."""
        while not self._others:
            with contextlib.suppress(Empty):
                return self._done.get(timeout=LOOK_EVERY)  # not wait(), which would look at all again each time
            if self._is_lost():
                number, _ = next(iter(self._running.values()))
                raise WorkerError(f"{self._calls[number].shown}: the scheduler of Dask is gone; start both again")
        self._others -= 1
        return next(future for future in self._running if not isinstance(future, Future))

    def _status(self) -> str:
        """Return the status of the client of Dask's executor, which does not tell it; "running" for other executors."""
        return str(getattr(getattr(self._executor, "_client", None), "status", "running"))

    def _is_lost(self) -> bool:
        """Whether what was submitted may never become done: the client of Dask has given its scheduler up, or connects
        for much longer than it tries that. The latter happens if it lost the scheduler while calls were submitted.
        """
        status, now = self._status(), time.monotonic()
        if status not in ("connecting", "closing", "closed"):
            self._lonely = math.inf
            return False
        self._lonely = min(self._lonely, now)
        limit = getattr(self._executor._client, "_timeout", None)  # type: ignore[attr-defined]
        return status == "closed" or now - self._lonely > LONELY * (limit if isinstance(limit, (int, float)) else 30)

    def cancel(self, wait_for_them: bool) -> None:
        """Cancel what waits, and wait for what runs if that is possible and wanted."""
        if self._status() == "closed":  # nobody could be told; concurrent.futures would log a traceback for each
            return
        # A future that was cancelled need not become done: some executors never look at it again.
        running = [future for future in self._running if not _cancel(future)]
        if isinstance(self._executor, Processes):
            self._executor.kill()
        elif wait_for_them:
            wait([future for future in running if isinstance(future, Future)])


def _call(*args: Any) -> Any:
    """Call a function, the last but one of the arguments, with those before it.

    The last one is different in each attempt. Dask takes calls of one function with equal arguments for one, and would
    return the error of the first attempt again, or the result of an earlier job.
    """
    *its, fn, _ = args
    return fn(*its)


def _cancel(future: Any) -> bool:
    try:
        return bool(future.cancel())
    except Exception:  # it has no such method, or its engine is gone
        return False
