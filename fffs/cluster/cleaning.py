"""Cleaning up after an error: it hides no error, and where a store may not answer, it delays no interrupt."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Final

from fffs.base.stopping import StopFlag, Stopped
from fffs.errors import FffsError

GRACE: Final = 3.0
"""Seconds for which a user waits after an interrupt."""


def clean_up(error: BaseException, work: Callable[[], None], is_remote: bool, cut_off: Callable[[], None]) -> None:
    """Call ``work`` after an error, which is the one to show. After an interrupt, it is stopped when GRACE has passed.

    error: the one that ended the work before. is_remote: ``work`` asks a store. cut_off: called if it was stopped; its
        last request may still be carried out.
    """
    if isinstance(error, Exception) or not is_remote:
        with contextlib.suppress(FffsError):
            work()
        return
    flag = StopFlag()

    def run() -> None:
        with contextlib.suppress(FffsError, Stopped), flag.here():
            work()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        thread.join(GRACE)
    finally:
        flag.set()
        if thread.is_alive():
            cut_off()
