"""Runs the same work in threads and in forked children, at the same time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

THREADS, CHILDREN = 6, 2


def find_problems(work: Callable[[int], list[object]]) -> list[object]:
    """Run ``work``, which returns problems, with different seeds. Returns all problems and exceptions."""
    problems: list[object] = []

    def in_thread(seed: int) -> None:
        try:
            problems.extend(work(seed))
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=in_thread, args=(seed,)) for seed in range(THREADS)]
    children = [_in_child(work, THREADS + k) for k in range(CHILDREN)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return problems + [status for child in children if (status := os.waitpid(child, 0)[1]) != 0]


def _in_child(work: Callable[[int], list[object]], seed: int) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = len(work(seed)) != 0
        finally:
            os._exit(status)
    return child
