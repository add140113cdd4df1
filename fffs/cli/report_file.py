"""The file of ``--report``: what the tasks of a job did, as JSON."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from fffs.base.failures import writing
from fffs.errors import UsageError
from fffs.files.atomic import AtomicFile
from fffs.files.pwrite import write_at
from fffs.files.targets import refuse_file

_BEGIN: Final = b'{\n "target": '  # of each report


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
        refuse_report(path)
    reports: list[Report] = []

    def take(report: Report) -> None:
        reports[:] = [report]

    try:
        yield take
    finally:  # the file is made only now, because the folder that is packed may hold it
        if path is not None and reports:
            write_report(path, reports[0])


def refuse_report(path: str) -> None:
    """Raise unless a report may be written into a file. Only an earlier report is replaced: a forgotten name would make
    the first source the name of the report.

    Raises UsageError, WriteError.
    """
    refuse_file(path)
    if not os.path.lexists(path):
        return
    with writing(path), open(path, "rb") as file:
        if file.read(len(_BEGIN)) not in (_BEGIN, b""):
            raise UsageError(f"{path}: exists, and is not a report of an earlier job; name a new file after --report")


def write_report(path: str, report: Report) -> None:
    """Write a report into a file. Raises as ``refuse_report``."""
    refuse_report(path)
    with AtomicFile(path) as file:
        write_at(file, [memoryview(report.to_json().encode() + b"\n")], 0)
        file.commit()
