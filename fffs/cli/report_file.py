"""The file of ``--report``: what the tasks of a job did, as JSON."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from fffs.files.atomic import AtomicFile
from fffs.files.pwrite import write_at
from fffs.files.targets import refuse_file


class Report(Protocol):
    """What commands use of a ``fffs.JobReport``."""

    @property
    def parts(self) -> int:
        """How many there are."""

    @property
    def results(self) -> tuple[Any, ...]:
        """Of those that are complete."""

    def to_json(self) -> str:
        """Return it as a JSON document."""


@contextlib.contextmanager
def report_file(path: str | None) -> Iterator[Callable[[Report], None]]:
    """Yield a function that is called with reports. The last one is in the file at the end, also after an error.

    Raises:
        UsageError, WriteError: the file cannot be written.

    """
    if path is not None:
        refuse_file(path)
    reports: list[Report] = []

    def take(report: Report) -> None:
        reports[:] = [report]

    try:
        yield take
    finally:  # the file is made only now, because the folder that is packed may hold it
        if path is not None and reports:
            write_report(path, reports[0])


def write_report(path: str, report: Report) -> None:
    """Write a report into a file. Raises UsageError, WriteError."""
    with AtomicFile(path) as file:
        write_at(file, [memoryview(report.to_json().encode() + b"\n")], 0)
        file.commit()
