"""PartTask: the work for one part of a set; PartResult: what came of it."""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

from fffs.base.jobs import Progress
from fffs.base.numbers import check_positive
from fffs.base.paths import as_utf8, of_utf8
from fffs.cluster.place_of import place_of
from fffs.cluster.processes import tell_driver
from fffs.errors import UsageError
from fffs.files.atomic_output import NewOutput


@dataclass(frozen=True)
class PartResult:
    """A part that is complete. Small, and can be pickled.

    ``path``: where it is when the plan is committed. ``checksum``: of the checksums of all its records. ``records``,
    ``total_bytes``: the files in it, and their bytes. ``seconds``: that it took. ``left_out``: a line for each input
    that is not in it. ``apart``: how many files have further names (hard links) that are not in this part. ``mark``:
    that of the task. ``host``: the name of the machine that wrote it. ``unread``, ``changed``: how many inputs were
    left out because they could not be read, or changed.
    """

    part: int
    path: str
    size: int
    checksum: int
    records: int
    total_bytes: int
    left_out: tuple[str, ...] = ()
    apart: int = 0
    seconds: float = 0.0
    mark: str = ""
    host: str = ""
    unread: int = 0
    changed: int = 0

    def to_json(self) -> str:
        """Return it as text of ASCII characters."""
        return json.dumps({**asdict(self), "path": as_utf8(self.path)})

    @classmethod
    def from_json(cls, text: str) -> PartResult:
        """Raises ValueError, TypeError, KeyError or RecursionError for other texts."""
        fields = json.loads(text)
        return cls(**{**fields, "path": of_utf8(str(fields["path"])), "left_out": tuple(fields["left_out"])})


@dataclass(frozen=True)
class PartTask:
    """Writes one part. Can be pickled.

    ``number`` counts from 0; ``name`` is the name of the part in ``target``, the folder by its absolute path or URL;
    ``fingerprint`` is that of the plan, and ``mark`` a hash of what the part is made from.
    ``total_bytes``: of the input.
    """

    number: int
    target: str
    name: str
    fingerprint: str
    mark: str
    total_bytes: int

    def to_fields(self) -> dict[str, Any]:
        """Return what is the task's own, not of its plan, as JSON can hold it."""
        raise NotImplementedError

    @staticmethod
    def from_fields(fields: dict[str, Any]) -> dict[str, Any]:
        """Return arguments of the class. Raises ValueError, TypeError, KeyError for other fields."""
        raise NotImplementedError

    def run(self, jobs: int | None = None, progress: Progress | None = None) -> PartResult:
        """Write the part, unless it is there already, complete and undamaged.

        May run in any process of any machine that sees source and target under their paths, also several times, and at
        the same time: each attempt writes a temporary file of its own and then renames it, and all write the same.

        Args:
            jobs: how many files are copied at once; None: as ``pack_folder``.
            progress: called with (bytes done, total bytes) from time to time, from any thread.

        Raises:
            UsageError: the plan was committed or aborted meanwhile; or ``jobs`` is less than 1.
            SourceChangedError: the source is not as it was when the plan was made.
            Also what writing the part raises.

        """
        check_positive(jobs=jobs)
        folder = place_of(self.target)
        folder.check(self.fingerprint)
        path, begin = folder.part(self.name, self.mark), time.monotonic()
        if (found := self.result()) and self._is_whole(path, found):
            return found
        result = self._write(lambda: folder.new_part(self.name, self.fingerprint, self.mark), jobs, progress)
        result = replace(result, mark=self.mark, seconds=time.monotonic() - begin, host=socket.gethostname())
        folder.keep(self.number, result.to_json(), self.fingerprint)
        return result

    def result(self) -> PartResult | None:
        """Return the result of the task if it has run, on whichever machine. Raises ReadError."""
        text = place_of(self.target).kept(self.number)
        if text is None:
            return None
        try:
            result = PartResult.from_json(text)
        except (ValueError, TypeError, KeyError, RecursionError):  # damaged: the task runs again
            return None
        return result if (result.part, result.mark) == (self.number, self.mark) else None

    @property
    def path(self) -> str:
        """The path of the part when the plan is committed."""
        return os.path.join(self.target, self.name)

    @property
    def shown(self) -> str:
        """The input, for messages."""
        raise NotImplementedError

    def _write(self, new: NewOutput, jobs: int | None, progress: Progress | None) -> PartResult:
        """Write the part into a new file, and commit it. new: makes one at each call."""
        raise NotImplementedError

    def is_of(self, path: str, result: PartResult) -> bool:
        """Whether a part of the right size is that of a result. Attempts write the same, unless they may leave out."""
        return True

    def _is_whole(self, path: str, result: PartResult) -> bool:
        """Whether the file is there, has the checksum of the result, and all records have theirs."""
        raise NotImplementedError


def run_task(task: PartTask, jobs: int | None = None) -> PartResult:
    """Run a task: a function of a module, which every engine can call in another process. As ``PartTask.run``."""
    return task.run(jobs, lambda done, _: tell_driver((task.number, done)))


def refuse_incomplete(task: PartTask, result: PartResult | None, size: int | None, place: str) -> PartResult:
    """Return the result, after checking that its part is there. Raises UsageError.

    size: of the part, if it is there. place: where it is, for messages.
    """
    if result is None or result.mark != task.mark:
        raise UsageError(f"{task.path}: part {task.number} is missing ({task.shown}); run its task first")
    if size != result.size or not task.is_of(place, result):
        raise UsageError(f"{place}: part {task.number} has vanished or changed ({task.shown}); run its task again")
    return result
