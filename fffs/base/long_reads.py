"""Reports of long reads whose callers have no progress function, such as opening an object: the program shows a bar."""

from __future__ import annotations

from collections.abc import Callable

Report = Callable[[str, int, int], None]
"""Called with a name, the bytes that are read, and those in total, from any thread."""

_report: Report | None = None


def set_report(report: Report | None) -> None:
    """Set the function that all reports of this process go to. None, the default: nothing is reported."""
    global _report
    _report = report


def report(name: str, done: int, total: int) -> None:
    """Report a read."""
    if _report is not None:
        _report(name, done, total)
