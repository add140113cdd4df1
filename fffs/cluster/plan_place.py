"""PlanPlace: where a plan, what its tasks read and write, and their results are kept until the target is complete."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Final

from fffs.errors import SourceNotFoundError, UsageError
from fffs.formats.ffrecord import SUFFIX

RESULTS: Final = "results"
STATE: Final = "state"  # written last and removed first: without it, there is no plan
_PLAN: Final = "plan.json"
INPUTS: Final = "inputs"

Inputs = Iterable[Iterable[bytes]]
"""What each task is to read, in pieces."""


def part_stem(target: str) -> str:
    """Return what the names of parts begin with. target: a path or URL."""
    return os.path.basename(target.rstrip("/")).removesuffix(SUFFIX).lstrip(".") or "parts"


class PlanPlace(ABC):
    """The place of the plan for one target. Has no state: every process has objects of its own.

    A driver that is killed leaves it to the next one with the same plan. ``path``: its name in messages.
    """

    target: str
    path: str

    @abstractmethod
    def only_driver(self) -> AbstractContextManager[None]:
        """Hold the lock of the target, which ends with this process.

        Raises:
            WriteError: another process holds it.

        """

    @abstractmethod
    def refuse_content(self) -> None:
        """Raise UsageError if the target has something that is not of a plan. WriteError: it cannot be examined."""

    # ------------------------------------------------------------ the plan

    def create(self, plan: str, request: str, fingerprint: str, restart: bool, inputs: Inputs = ()) -> None:
        """Create the place for a plan, or go on with it if one for the same request is there.

        Complete parts stay. They are recognised by the marks in their results, so those of another plan are of no use
        unless what they were made from is unchanged.

        Args:
            plan: as text.
            request: a line that says what was asked for.
            fingerprint: of the plan, a line.
            restart: remove what there is.
            inputs: for each task, what ``read_input`` returns.

        Raises:
            UsageError: it has parts for another request, or belongs to another user. WriteError: it cannot be created.

        """
        if self._is_there():
            self.refuse_strange()
            there = self._state()
            if there == (request, fingerprint) and not restart:
                self._put_inputs(inputs)  # they may be damaged
                return
            if there and there[0] != request and not restart and self._has_results():
                raise UsageError(
                    f"{self.target}: {self.path} has parts for another source, another number of parts or other "
                    "options; finish that, or remove them with --restart"
                )
            if there is None or there[0] != request or restart:
                self.remove()
        self._make()
        self._put_inputs(inputs)
        self._put(_PLAN, [plan.encode("ascii")])
        self._put(STATE, [f"{request}\n{fingerprint}".encode("ascii")])

    def _put_inputs(self, inputs: Inputs) -> None:
        for number, pieces in enumerate(inputs):
            self._put(self.input(number), pieces)

    def plan(self) -> str:
        """Return the plan as text. Raises SourceNotFoundError, UsageError, ReadError."""
        text = self._read(_PLAN)
        if text is None or self._state() is None:
            raise SourceNotFoundError(f"{self.target}: there is no plan for it (no {self.path}); make one first")
        self.refuse_strange()
        return text.decode("ascii", "replace")

    def fingerprint(self) -> str | None:
        """Return the fingerprint of the plan, or None if there is none. Raises ReadError."""
        state = self._state()
        return state[1] if state else None

    def _state(self) -> tuple[str, str] | None:
        """Return the request and the fingerprint. Raises ReadError."""
        text = self._read(STATE)
        if text is None:
            return None
        request, _, fingerprint = text.decode("ascii", "replace").partition("\n")
        return request, fingerprint

    def check(self, fingerprint: str) -> None:
        """Raise UsageError unless this is the plan: it may have been committed or aborted, or replaced by another."""
        if self.fingerprint() != fingerprint:
            raise UsageError(f"{self.target}: this plan is not there any more; it was committed, aborted or restarted")
        self.refuse_strange()

    @abstractmethod
    def refuse_strange(self) -> None:
        """Raise UsageError if another user may have written to the place, SourceNotFoundError if there is none."""

    # ------------------------------------------------------------ tasks

    @staticmethod
    def input(number: int) -> str:
        """Return the name here of what a task is to read."""
        return f"{INPUTS}/{number:05}"

    def read_input(self, number: int) -> bytes:
        """Return what the plan keeps for a task. Raises SourceNotFoundError, ReadError."""
        data = self._read(self.input(number))
        if data is None:
            raise SourceNotFoundError(f"{self.path}/{self.input(number)}: is missing; make a new plan")
        return data

    @abstractmethod
    def part(self, name: str) -> str:
        """Return the path or URL of a part until all of them are there."""

    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """Return the sizes in bytes of the parts that are there. Raises ReadError."""

    def keep(self, number: int, result: str) -> None:
        """Keep the result of a part, as text. Raises WriteError."""
        self._put_result(f"{RESULTS}/{number:05}", result.encode("ascii"))

    def kept(self, number: int) -> str | None:
        """Return what ``keep`` was given, or None. Raises ReadError."""
        data = self._read(f"{RESULTS}/{number:05}")
        return None if data is None else data.decode("ascii", "replace")

    # ------------------------------------------------------------ the end

    @abstractmethod
    def put_in_place(self, names: list[str], manifest: str) -> None:
        """Let the target appear with these parts, all at once, and remove this place.

        Until then, the parts keep their names here: whoever is killed meanwhile, the next one can do it again.

        manifest: what is in the parts, as text. It is kept where a target cannot appear at once.

        Raises:
            UsageError: the target exists. WriteError: it cannot be written.

        """

    @abstractmethod
    def remove(self) -> None:
        """Remove the place with all that is in it, and what was written for the target. Raises WriteError."""

    # ------------------------------------------------------------ what each kind of place has

    @abstractmethod
    def _is_there(self) -> bool:
        """Whether there is anything."""

    @abstractmethod
    def _make(self) -> None:
        """Make what is needed before the first ``_put``. Raises WriteError."""

    @abstractmethod
    def _has_results(self) -> bool:
        """Whether a task has run. Raises ReadError."""

    @abstractmethod
    def _read(self, name: str) -> bytes | None:
        """Return what has a name, or None. Raises ReadError."""

    @abstractmethod
    def _put(self, name: str, pieces: Iterable[bytes]) -> None:
        """Keep something, durably; it appears complete or not at all. Raises WriteError."""

    @abstractmethod
    def _put_result(self, name: str, data: bytes) -> None:
        """As ``_put``, but what is lost if the machine fails is made again."""
