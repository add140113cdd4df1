"""Executors: where tasks run, and again when a worker dies."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Protocol

from fffs.base.jobs import Progress
from fffs.cluster.part_task import PartResult, PartTask, run_task
from fffs.cluster.processes import Processes
from fffs.errors import FffsError, FormatError, SourceChangedError, SourceNotFoundError, UsageError, WorkerError

TRIES: Final = 3
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


def run_calls(
    calls: Sequence[Call], executor: Submits, tries: int = TRIES, *, wrap: bool = False
) -> Generator[tuple[int, Any], None, None]:
    """Submit all calls, each again if it fails, and yield the number and result of each as they come.

    Args:
        calls: any of them may run several times.
        executor: where they run. It is not shut down.
        tries: how often a call is tried.
        wrap: exceptions that are not of fffs come from the executor, and the last one becomes a WorkerError.

    Raises:
        WorkerError: the worker of a call died, or the executor failed, ``tries`` times; the message names the input.
        Also what the functions raise. No call waits any more then, and those that run on executors of
        ``concurrent.futures`` have ended.

    """
    attempts = _Attempts(calls, executor, tries, wrap)
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
    progress: Progress | None = None,
    total: int = 0,
) -> list[PartResult]:
    """Run tasks, each up to TRIES times if its worker dies or the system fails, and return the results by part.

    Args:
        tasks: of one plan.
        executor: as for ``run_calls``. None: in this process, one after the other.
        jobs: as for ``PartTask.run``.
        progress: called with (bytes done, total) when a task is done; without an executor more often.
        total: bytes of all tasks together.

    Raises as ``run_calls``.

    """
    if executor is None:
        return _run_here(tasks, jobs, progress, total)
    calls = [Call(run_task, (task, jobs), f"{task.shown}: {task.path}") for task in tasks]
    results: list[PartResult] = []
    done = 0
    with contextlib.closing(run_calls(calls, executor, wrap=True)) as found:
        for _, result in found:
            results.append(result)
            done += result.total_bytes
            if progress:
                progress(done, total)
    return sorted(results, key=lambda result: result.part)


def _run_here(tasks: Sequence[PartTask], jobs: int | None, progress: Progress | None, total: int) -> list[PartResult]:
    results: list[PartResult] = []
    done = 0

    def report(here: int, _: int) -> None:
        if progress:
            progress(done + here, total)

    for task in tasks:
        results.append(task.run(jobs, report))
        done += results[-1].total_bytes
    return results


class _Attempts:
    """The attempts that are waiting or running on an executor."""

    def __init__(self, calls: Sequence[Call], executor: Submits, tries: int, wrap: bool) -> None:
        self._calls, self._executor, self._tries, self._wrap = calls, executor, tries, wrap
        self._running: dict[Any, tuple[int, int]] = {}  # future -> number of the call, and of the attempt

    def begin(self) -> None:
        """Submit all calls."""
        for number in range(len(self._calls)):
            self._submit(number, 1)

    def _submit(self, number: int, attempt: int) -> None:
        call = self._calls[number]
        try:
            future = self._executor.submit(call.fn, *call.args)
        except WorkerError as error:
            raise WorkerError(f"{call.shown}: {error}") from error
        except Exception as error:  # a pool that a dead worker has broken
            raise WorkerError(f"{call.shown}: the executor failed: {error!r}") from error
        self._running[future] = number, attempt

    def results(self) -> Iterator[tuple[int, Any]]:
        """Yield numbers and results as they come, until all calls are done. Raises as ``run_calls``."""
        while self._running:
            for future in self._next():
                number, attempt = self._running.pop(future)
                try:
                    yield number, future.result()
                except _FINAL:
                    raise
                except Exception as error:
                    if attempt == self._tries:
                        self._fail(number, error)
                    self._submit(number, attempt + 1)

    def _fail(self, number: int, error: Exception) -> NoReturn:
        """Raise the error of the last attempt: one that names the input."""
        if isinstance(error, WorkerError) or (self._wrap and not isinstance(error, FffsError)):
            often = f"failed in {self._tries} attempts: " if self._tries > 1 else ""
            raise WorkerError(f"{self._calls[number].shown}: {often}{str(error) or repr(error)}") from error
        raise error

    def _next(self) -> list[Any]:
        """Return at least one that is done. Others than those of ``concurrent.futures`` are waited for in order."""
        if all(isinstance(future, Future) for future in self._running):
            return list(wait(self._running, return_when=FIRST_COMPLETED).done)
        return [next(iter(self._running))]

    def cancel(self, wait_for_them: bool) -> None:
        """Cancel what waits, and wait for what runs if that is possible and wanted."""
        # A future that was cancelled need not become done: some executors never look at it again.
        running = [future for future in self._running if not _cancel(future)]
        if isinstance(self._executor, Processes):
            self._executor.kill()
        elif wait_for_them:
            wait([future for future in running if isinstance(future, Future)])


def _cancel(future: Any) -> bool:
    try:
        return bool(future.cancel())
    except Exception:  # it has no such method, or its engine is gone
        return False
