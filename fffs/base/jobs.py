"""Jobs: the same work on many items in several threads. No thread works any more when ``run`` returns or raises."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from fffs.base.descriptors import are_few
from fffs.base.stopping import StopFlag, Stopped

Item = TypeVar("Item")
Progress = Callable[[int, int], None]

SLICE = 64  # items that a thread takes at a time


def default_jobs() -> int:
    """Return the default number of threads that copy files. Each needs a few descriptors."""
    return 1 if are_few() else min(len(os.sched_getaffinity(0)), 4)


class Jobs:
    """Runs work in threads and counts the bytes that are done.

    Args:
        total: the number of bytes to do.
        progress: called with (bytes done, bytes in total) by ``count``, from any thread.
        cancel: called, perhaps more than once, when the work of other threads is not needed any more.

    """

    def __init__(self, total: int, progress: Progress | None, cancel: Callable[[], None] | None = None) -> None:
        self._total, self._progress = total, progress
        self._cancel = cancel
        self._done = self._active = 0
        self._stopped = False  # one item failed, or the caller was interrupted
        self._flag = StopFlag()  # the same, for C
        self._idle = threading.Condition()

    def run(self, work: Callable[[Item], None], items: Sequence[Item], jobs: int, size: int = SLICE) -> None:
        """Call ``work`` with each item; a thread takes ``size`` of them at a time.

        Raises the first exception of ``work``, after all threads have stopped.
        """
        slices = [items[k : k + size] for k in range(0, len(items), size)]
        try:
            if jobs == 1 or len(slices) <= 1:
                for part in slices:
                    self._work(work, part)
            else:
                self._run_in_threads(work, slices, jobs)
        finally:
            # Started here: ThreadPoolExecutor forgets a thread if an interrupt arrives while it starts it.
            with self._idle:
                self._idle.wait_for(lambda: self._active == 0)

    def _run_in_threads(self, work: Callable[[Item], None], slices: list[Sequence[Item]], jobs: int) -> None:
        with ThreadPoolExecutor(jobs) as pool:
            try:
                for future in [pool.submit(self._work, work, part) for part in slices]:
                    future.result()
            except BaseException:
                self._stop()
                pool.shutdown(cancel_futures=True)
                raise

    def _stop(self) -> bool:
        """Have all threads stop. Returns whether nothing had stopped them before."""
        with self._idle:
            is_first, self._stopped = not self._stopped, True
        self._flag.set()
        if self._cancel:
            self._cancel()
        return is_first

    def _work(self, work: Callable[[Item], None], items: Sequence[Item]) -> None:
        with self._idle:
            if self._stopped:
                return
            self._active += 1
        try:
            with self._flag.here():
                for item in items:
                    if self._stopped:
                        return
                    work(item)
        except Stopped:
            return
        except BaseException:
            if self._stop():  # the other threads need not finish; what they raise then only says that they were stopped
                raise
        finally:
            with self._idle:
                self._active -= 1
                self._idle.notify_all()

    def count(self, size: int) -> None:
        """Add to the bytes that are done. Called by ``work``. Raises Stopped when the rest is not needed any more."""
        with self._idle:
            if self._stopped:
                raise Stopped
            self._done += size
            done = self._done
        if self._progress:
            self._progress(done, self._total)
