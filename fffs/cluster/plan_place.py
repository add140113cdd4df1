"""PlanPlace: where a plan, what its tasks read and write, and their results are kept until the target is complete."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Final

from fffs.base.part_sets import ENDINGS
from fffs.cluster.cleaning import clean_up
from fffs.errors import FffsError, SourceNotFoundError, UsageError
from fffs.files.atomic_output import AtomicOutput

RESULTS: Final = "results"
STATE: Final = "state"  # written last and removed first: without it, there is no plan
GONE: Final = "this plan is not there any more; it was committed, aborted or restarted"
_PLAN: Final = "plan.json"
INPUTS: Final = "inputs"

Inputs = Iterable[Iterable[bytes]]
"""What each task is to read, in pieces."""


def part_stem(target: str) -> str:
    """Return what the names of parts begin with. target: a path or URL."""
    name = os.path.basename(target.rstrip("/"))
    for ending in ENDINGS:
        name = name.removesuffix(ending)
    return name.lstrip(".") or "parts"


def state_ending(fingerprint: str) -> str:
    """Return what the state of a plan ends with, after the request."""
    return f"\n{fingerprint}"


class OpenPlace(ABC):
    """The place of a plan while it is open: all of its methods use the same one, whatever gets its name meanwhile."""

    @abstractmethod
    def make(self) -> None:
        """Make what is needed before the first ``put``. Raises WriteError."""

    @abstractmethod
    def empty(self) -> None:
        """Remove all that is in it, and what was written for the target, as far as possible.

        Raises WriteError; UsageError: it is not the place of a plan.
        """

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """Return what has a name, or None. Raises ReadError."""

    @abstractmethod
    def put(self, name: str, pieces: Iterable[bytes]) -> None:
        """Keep something, durably; it appears complete or not at all. Raises WriteError."""

    @abstractmethod
    def put_result(self, name: str, data: bytes) -> None:
        """As ``put``, but what is lost if the machine fails is made again."""

    @abstractmethod
    def has_results(self) -> bool:
        """Whether a task has run. Raises ReadError."""

    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """Return the sizes in bytes of the parts that are there. Raises ReadError."""

    @abstractmethod
    def keep_parts(self, names: Collection[str]) -> None:
        """Remove the parts that an older plan left, except those of these names, as ``sizes`` has them.

        Raises WriteError.
        """

    @abstractmethod
    def new_part(self, name: str, mark: str, fingerprint: str) -> AtomicOutput:
        """Return a new file or object for a part of the plan with this fingerprint. As ``PlanPlace.new_part``."""

    @abstractmethod
    def put_in_place(self, names: list[tuple[str, str]], manifest: str, fingerprint: str) -> None:
        """Let the target appear with parts, all at once. names: of each part, here and in the target.

        manifest: what is in the parts, as text. It is kept where a target cannot appear at once. fingerprint: of the
        plan, which may be another's meanwhile.

        Raises UsageError: the target exists, or the plan is not there any more. WriteError: it cannot be written.
        """

    def state(self) -> tuple[str, str] | None:
        """Return the request and the fingerprint of the plan. Raises ReadError."""
        text = self.read(STATE)
        if text is None:
            return None
        request, _, fingerprint = text.decode("ascii", "replace").partition("\n")
        return request, fingerprint


class PlanPlace(ABC):
    """The place of the plan for one target. Has no state: every process has objects of its own.

    A driver that is killed leaves it to the next one with the same plan. ``path``: its name in messages.
    """

    target: str
    path: str
    is_remote = False
    """Whether a store is asked, which may not answer."""

    @abstractmethod
    def only_driver(self) -> AbstractContextManager[None]:
        """Hold the lock of the target, which ends with this process.

        Raises:
            WriteError: another process holds it.

        """

    @abstractmethod
    def refuse_content(self) -> None:
        """Raise UsageError if the target has something that is not of a plan. WriteError: it cannot be examined."""

    @abstractmethod
    def is_in_place(self) -> bool:
        """Return whether the target is there with all parts. Raises ReadError."""

    @abstractmethod
    def _opened(self) -> AbstractContextManager[OpenPlace]:
        """Open the place.

        Raises SourceNotFoundError: there is none; UsageError: it may be another user's; ReadError.
        """

    @abstractmethod
    def _made(self) -> AbstractContextManager[OpenPlace]:
        """Open the place, and create it if there is none. Raises as ``_opened``, and WriteError."""

    @abstractmethod
    def remove(self) -> bool:
        """Remove the place with all that is in it, and what was written for the target. False: there is none.

        Raises WriteError: something cannot be removed; UsageError: it is another user's, or not the place of a plan.
        """

    def remove_plan(self, fingerprint: str) -> None:
        """As ``remove``, if the plan is this one. A driver that was suspended for long finds that of another one, which
        took its lock. Raises as ``remove``, and ReadError.
        """
        if self.fingerprint() == fingerprint:
            self.remove()

    def _remove_ours(self, fingerprint: str) -> None:
        """As ``remove``, unless the plan is another one."""
        if self.fingerprint() in (None, fingerprint):
            self.remove()

    def clean_up(self, error: BaseException, work: Callable[[], None]) -> None:
        """See ``cleaning.clean_up``. The lock stays if ``work`` is cut off."""
        clean_up(error, work, self.is_remote, self.keep_lock)

    def keep_lock(self) -> None:  # noqa: B027 - of a store alone
        """Leave the lock that this process holds to those who find that nobody renews it."""

    @contextlib.contextmanager
    def _with_plan(self, fingerprint: str) -> Iterator[OpenPlace]:
        """Open the place, which has this plan. Raises UsageError if it has another one, or none."""
        gone = f"{self.target}: {GONE}"
        with contextlib.ExitStack() as stack:
            try:
                place = stack.enter_context(self._opened())
            except SourceNotFoundError:
                raise UsageError(gone) from None
            state = place.state()
            if state is None or state[1] != fingerprint:
                raise UsageError(gone)
            yield place

    # ------------------------------------------------------------ the plan

    def create(
        self,
        plan: str,
        request: str,
        fingerprint: str,
        restart: bool,
        inputs: Inputs = (),
        *,
        parts: Collection[tuple[str, str]],
    ) -> None:
        """Create the place for a plan, or go on with it if one for the same request is there.

        Complete parts stay. The marks in their results show whether what they were made from is unchanged.

        Args:
            plan: as text.
            request: a line that says what was asked for.
            fingerprint: of the plan, a line.
            restart: remove what there is.
            inputs: for each task, what ``read_input`` returns.
            parts: the name and the mark of each part. Others that an older plan left are removed.

        Raises:
            UsageError: it has parts for another request, or belongs to another user, or is not the place of a plan; or
                the target has something that is not of a plan.
            WriteError: it cannot be created.

        """
        with self._made() as place:
            there = place.state()
            if there == (request, fingerprint) and not restart:
                _put_inputs(place, inputs)  # they may be damaged
                return
            if there and there[0] != request and not restart and place.has_results():
                raise UsageError(
                    f"{self.target}: {self.path} has parts for another source, another number of parts or other "
                    "options; finish that, or remove them with --restart"
                )
            is_new = there is None or there[0] != request or restart
            if there is None:  # making the plan took its time
                self.refuse_content()
            if is_new:
                place.empty()
                self.refuse_content()  # a driver that lost its lock may have committed meanwhile
            try:
                place.make()
                _put_inputs(place, inputs)
                place.put(_PLAN, [plan.encode("ascii")])
                place.put(STATE, [f"{request}{state_ending(fingerprint)}".encode("ascii")])
            except BaseException as error:
                if is_new:  # nothing in it is of use, unless another driver took the lock of this one
                    self.clean_up(error, lambda: self._remove_ours(fingerprint))
                raise
            place.keep_parts({os.path.basename(self.part(*part)) for part in parts})

    def plan(self) -> str:
        """Return the plan as text. Raises SourceNotFoundError, UsageError, ReadError."""
        with self._opened() as place:
            text = place.read(_PLAN)
            if text is None or place.state() is None:
                raise SourceNotFoundError(f"{self.target}: there is no plan for it in {self.path}; make one first")
            return text.decode("ascii", "replace")

    def fingerprint(self) -> str | None:
        """Return the fingerprint of the plan, or None if there is none. Raises UsageError, ReadError."""
        try:
            with self._opened() as place:
                state = place.state()
        except SourceNotFoundError:
            return None
        return state[1] if state else None

    def check(self, fingerprint: str) -> None:
        """Raise UsageError unless this is the plan: it may have been committed or aborted, or replaced by another."""
        with self._with_plan(fingerprint):
            pass

    # ------------------------------------------------------------ tasks

    @staticmethod
    def input(number: int) -> str:
        """Return the name here of what a task is to read."""
        return f"{INPUTS}/{number:05}"

    def read_input(self, number: int, fingerprint: str) -> bytes:
        """Return what a plan keeps for a task. Raises SourceNotFoundError, UsageError, ReadError."""
        with self._with_plan(fingerprint) as place:
            data = place.read(self.input(number))
        if data is None:
            raise SourceNotFoundError(f"{self.path}/{self.input(number)}: is missing; make a new plan")
        return data

    @abstractmethod
    def part(self, name: str, mark: str = "") -> str:
        """Return the path or URL of a part until all of them are there.

        mark: of what it is made from. Where the part does not have its final name yet, another mark gives another path:
        a late task of an older plan replaces no part of this one.
        """

    def new_part(self, name: str, fingerprint: str, mark: str = "") -> AtomicOutput:
        """Return a new file for a part of a plan. mark: as for ``part``.

        Raises UsageError if the plan is not there any more, WriteError. So does its ``commit`` in a store.
        """
        with self._with_plan(fingerprint) as place:
            return place.new_part(name, mark, fingerprint)

    def remove_stray(self, name: str, fingerprint: str) -> None:  # noqa: B027 - only final names may be left
        """Remove a part that nobody counted, as one that came after its plan had ended, unless that was committed.

        name: one that no other plan gives to its parts.

        Raises WriteError, ReadError, AccessError.
        """

    def sizes(self, fingerprint: str) -> dict[str, int]:
        """Return the sizes in bytes of the parts that are there, by the last component of what ``part`` returns.

        Raises ReadError, UsageError.
        """
        with self._with_plan(fingerprint) as place:
            return place.sizes()

    def keep(self, number: int, result: str, fingerprint: str) -> None:
        """Keep the result of a part, as text. Raises WriteError, and UsageError if the plan is not there any more."""
        with self._with_plan(fingerprint) as place:
            place.put_result(f"{RESULTS}/{number:05}", result.encode("ascii"))

    def kept(self, number: int) -> str | None:
        """Return what ``keep`` was given, or None. Raises UsageError, ReadError."""
        try:
            with self._opened() as place:
                data = place.read(f"{RESULTS}/{number:05}")
        except SourceNotFoundError:
            return None
        return None if data is None else data.decode("ascii", "replace")

    # ------------------------------------------------------------ the end

    def put_in_place(self, names: Iterable[tuple[str, str]], fingerprint: str, manifest: str = "") -> None:
        """Let the target appear with parts of a plan, all at once, and remove this place.

        Until then, the parts keep their names here: whoever is killed meanwhile, the next one can do it again.

        Args:
            names: of each part, here and in the target.
            fingerprint: of the plan.
            manifest: as for ``OpenPlace.put_in_place``.

        Raises UsageError: the target exists, or the plan is not there any more. WriteError: it cannot be written.
        """
        try:
            with self._with_plan(fingerprint) as place:
                place.put_in_place(list(names), manifest, fingerprint)
            with contextlib.suppress(FffsError):  # a late task still writes there; the next plan removes it
                self.remove_plan(fingerprint)
        except (KeyboardInterrupt, SystemExit) as error:
            # If the target is there, this place is of no use.
            self.clean_up(error, lambda: self._remove_ours(fingerprint) if self.is_in_place() else None)
            raise


def _put_inputs(place: OpenPlace, inputs: Inputs) -> None:
    for number, pieces in enumerate(inputs):
        place.put(PlanPlace.input(number), pieces)
