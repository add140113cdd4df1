"""Processes: an executor whose workers may die: only the task of a dead worker fails, and another takes its place."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from fffs.errors import WorkerError

PATIENCE: Final = 1.0  # seconds that an idle process has to end
INTERVAL: Final = 0.2  # seconds between two messages of a worker

_BEGUN: Final = "begun"  # the first thing that a process sends

_NOT_BEGUN: Final = (
    ", before it began; it runs the program's main module again, which must be a file that starts processes below "
    "if __name__ == '__main__':"
)

_T = TypeVar("_T")


class Processes(Executor):
    """Runs functions in processes, which begin when the first functions are submitted, and end with this one.

    ``concurrent.futures.ProcessPoolExecutor`` fails as a whole when one of its processes is killed. Used by one thread;
    daemonic processes cannot use it.
    """

    def __init__(self, count: int, method: str = "spawn", given: tuple[Any, ...] = ()) -> None:
        """count: how many run at a time.

        method: how processes start, as for ``multiprocessing``. A child of fork has the locks of other threads.
        given: the first arguments of all functions, which each process gets once, by fork if that is the method.
        """
        self._count, self._method, self._given = count, method, given
        self._threads = ThreadPoolExecutor(count)
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        self._lock = threading.Lock()
        self._ended = False
        self._listener: Callable[[Any], None] | None = None

    @contextlib.contextmanager
    def heard_by(self, listener: Callable[[Any], None]) -> Iterator[None]:
        """In the block, call ``listener``, from any thread, with what functions pass to ``tell_driver``."""
        self._listener = listener
        try:
            yield
        finally:
            self._listener = None

    def _hear(self, message: Any) -> None:
        if listener := self._listener:
            listener(message)

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> Future[_T]:
        """As in the base class. The result raises WorkerError if the process dies, and this if none can be started."""
        with self._lock:
            if len(self._all) < self._count and not self._ended:
                self._idle.append(self._new())
        return self._threads.submit(self._run, fn, args, kwargs)

    def _new(self) -> _Worker:
        worker = _Worker(self._method, self._given)
        self._all.add(worker)
        return worker

    def _run(self, fn: Callable[..., _T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> _T:
        with self._lock:
            if self._ended:
                raise WorkerError("the executor was shut down")
            worker = self._idle.pop() if self._idle else self._new()
        try:
            good, value, trace = worker.call((fn, args, kwargs), self._hear)
        except BaseException:
            worker.kill()
            with self._lock:
                self._all.discard(worker)
            raise
        with self._lock:
            self._idle.append(worker)
        if not good:
            raise value from RuntimeError(f"in a worker process:\n{trace}")
        return value  # type: ignore[no-any-return]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As in the base class. With ``wait``, all processes have ended then."""
        self._threads.shutdown(wait, cancel_futures=cancel_futures)
        if wait:
            with self._lock:
                self._ended = True
                workers = list(self._all)
            for worker in workers:
                worker.end()

    def kill(self) -> None:
        """End all processes at once, also in the middle of a task."""
        with self._lock:
            self._ended = True
            workers = list(self._all)
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.kill()
        self._threads.shutdown()


class _Worker:
    """A process, for one thread at a time."""

    def __init__(self, method: str, given: tuple[Any, ...]) -> None:
        """Raises WorkerError: the system refuses."""
        context: Any = multiprocessing.get_context(method)
        self._has_begun = False
        try:
            self._pipe, theirs = context.Pipe()
        except OSError as error:
            raise WorkerError(f"a worker process cannot be started: {error.strerror}") from error
        self._process = context.Process(target=_serve, args=(theirs, given), daemon=True)
        try:
            self._process.start()
        except ConnectionError as error:  # of the server that forks, which imports the main module first
            self._pipe.close()
            raise WorkerError(f"a worker process ended early: {error.strerror}{_NOT_BEGUN}") from error
        except OSError as error:
            self._pipe.close()
            raise WorkerError(f"a worker process cannot be started: {error.strerror}") from error
        except BaseException:
            self._pipe.close()
            raise
        finally:
            theirs.close()

    def call(self, call: tuple[Any, ...], hear: Callable[[Any], None]) -> tuple[bool, Any, str]:
        """Return whether the function returned, its value or exception, and the traceback of that.

        call: the function, its arguments and keyword arguments. hear: called with what it passes to ``tell_driver``.

        Raises WorkerError if the process ends meanwhile.
        """
        with contextlib.suppress(EOFError, OSError):
            self._pipe.send(call)
            # Until an answer, or its end: the other end of the pipe may be open in a child of another thread.
            while self._answers():
                answer = self._pipe.recv()
                if isinstance(answer, tuple):
                    good, value, trace = answer
                    return bool(good), value, str(trace)
                if answer == _BEGUN:
                    self._has_begun = True
                else:
                    hear(answer.content)
        self._process.join()
        code = self._process.exitcode  # None in a program that ignores SIGCHLD
        why = f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        if not self._had_begun():
            why += _NOT_BEGUN
        raise WorkerError(f"a worker process ended early: {why}")

    def _had_begun(self) -> bool:
        with contextlib.suppress(EOFError, OSError):  # it may have ended before its first call
            self._has_begun = self._has_begun or (self._pipe.poll() and self._pipe.recv() == _BEGUN)
        return self._has_begun

    def _answers(self) -> bool:
        """Wait for the process, and return whether it has sent something. Otherwise it has ended."""
        multiprocessing.connection.wait([self._pipe, self._process.sentinel])
        return bool(self._pipe.poll())

    def end(self) -> None:
        """End the process, which is idle."""
        with contextlib.suppress(OSError):
            self._pipe.send(None)
            # Not is_alive(): in a program that ignores SIGCHLD, it does not notice the end.
            multiprocessing.connection.wait([self._process.sentinel], PATIENCE)
        self.kill()

    def kill(self) -> None:
        """Kill the process. May be called again."""
        self._process.kill()
        self._process.join()


@dataclass(frozen=True)
class _Message:
    """What a function says while it runs."""

    content: Any


class _Driver:
    """The way from a worker to its driver. Nobody listens in a process that is no worker."""

    def __init__(self) -> None:
        self.pipe: Any = None
        self._lock = threading.Lock()
        self._next = 0.0

    def tell(self, message: Any) -> None:
        """Send a message from any thread, unless one was sent a moment ago."""
        if self.pipe is None or time.monotonic() < self._next or not self._lock.acquire(blocking=False):
            return
        try:
            with contextlib.suppress(OSError):  # the driver has ended
                self.pipe.send(_Message(message))
            self._next = time.monotonic() + INTERVAL
        finally:
            self._lock.release()


_driver: Final = _Driver()


def tell_driver(message: Any) -> None:
    """Send a message to the driver of this worker, unless one was sent a moment ago. Elsewhere, do nothing.

    Called by a function that runs in ``Processes``, from any thread, but not after it returned.
    """
    _driver.tell(message)


def _serve(pipe: Any, given: tuple[Any, ...]) -> None:
    """Call functions in a worker, until the parent ends or sends None."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to the parent, too, which ends the workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not the parent's handler, which may do something else than end it
    signal.set_wakeup_fd(-1)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    _driver.pipe = pipe
    with contextlib.suppress(EOFError):
        pipe.send(_BEGUN)
        while call := pipe.recv():
            fn, args, kwargs = call
            try:
                answer = True, fn(*given, *args, **kwargs), ""
            except BaseException as error:
                answer = False, _sendable(error), traceback.format_exc()
            pipe.send(answer)


def _end_with(sentinel: int) -> None:
    """End this process at once when its parent has ended: nobody would use its work."""
    multiprocessing.connection.wait([sentinel])
    os._exit(1)


def _sendable(error: BaseException) -> BaseException:
    """Return the exception, or one with its text if it cannot be pickled and loaded."""
    try:
        if isinstance(pickle.loads(pickle.dumps(error)), Exception):
            return error
    except Exception:  # as with arguments of its own
        pass
    return RuntimeError("".join(traceback.format_exception_only(error)).strip())
