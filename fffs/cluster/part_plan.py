"""PartPlan: a plan whose tasks write the parts of a set, which then appears at once."""

from __future__ import annotations

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Final

from fffs.base.paths import PathLike, as_utf8, of_utf8, without_zero
from fffs.cluster.part_task import PartResult, PartTask, refuse_incomplete
from fffs.cluster.place_of import place_of
from fffs.cluster.plan_target import absolute_target
from fffs.errors import FormatError

if TYPE_CHECKING:
    from typing_extensions import Self

FORMAT: Final = "fffs plan 1"
MANIFEST: Final = "fffs parts 1"
ENGINE_WORK: Final = "write rows of an engine"
"""The work of jobs that are no ``PartPlan``: only the program that runs one can commit it."""


@dataclass(frozen=True)
class PartPlan(ABC):
    """A plan for the set of parts ``target``, a folder by its absolute path or URL. Can be pickled.

    ``fingerprint`` is a hash of how the work is divided, and of what the plan saw of the source. ``tasks`` may run in
    any order, in any processes. The other fields of a subclass are those that all its tasks have as well; JSON can hold
    them. ``WORK``: what it does, a word. ``TASK``: the class of its tasks. ``UNMARKED``: fields that do not change the
    bytes of a part. ``PATHS``: fields that are paths.
    """

    target: str
    fingerprint: str
    tasks: tuple[PartTask, ...]

    WORK: ClassVar[str]
    TASK: ClassVar[type[PartTask]]
    UNMARKED: ClassVar[tuple[str, ...]] = ()
    PATHS: ClassVar[tuple[str, ...]] = ()

    @property
    def total_bytes(self) -> int:
        """The bytes of the inputs of all tasks."""
        return sum(task.total_bytes for task in self.tasks)

    @property
    def parts(self) -> list[tuple[str, str]]:
        """The name and the mark of each part."""
        return [(task.name, task.mark) for task in self.tasks]

    # ------------------------------------------------------------ making

    @classmethod
    @abstractmethod
    def part_name(cls, target: str, number: int, total: int, options: dict[str, Any]) -> str:
        """Return the name of a part. options: the fields that all tasks have."""

    @classmethod
    def of(cls, target: str, divided: Sequence[dict[str, Any]], **options: Any) -> Self:
        """Return the plan of tasks with these fields, as of ``PartTask.to_fields``. options: those of all tasks."""
        names = [cls.part_name(target, k, len(divided), options) for k in range(len(divided))]
        marked = {name: value for name, value in options.items() if name not in cls.UNMARKED}
        marks = [
            _hash([FORMAT, cls.WORK, sorted(marked.items()), as_utf8(name), own])
            for name, own in zip(names, divided, strict=True)
        ]
        fingerprint = _hash(marks)
        tasks = [
            cls.TASK(
                number=k,
                target=target,
                name=names[k],
                fingerprint=fingerprint,
                mark=marks[k],
                **cls.TASK.from_fields(own),
                **options,
            )
            for k, own in enumerate(divided)
        ]
        return cls(target=target, fingerprint=fingerprint, tasks=tuple(tasks), **options)

    @classmethod
    def _option_names(cls) -> list[str]:
        common = [field.name for field in fields(PartPlan)]
        return [field.name for field in fields(cls) if field.name not in common]

    def to_json(self) -> str:
        """Return the plan as text of ASCII characters, which means the same in every locale."""
        options = {name: getattr(self, name) for name in self._option_names()}
        options |= {name: as_utf8(options[name]) for name in self.PATHS}
        tasks = [task.to_fields() for task in self.tasks]
        plan = {"format": FORMAT, "work": self.WORK, "target": as_utf8(self.target), **options}
        return json.dumps({**plan, "fingerprint": self.fingerprint, "tasks": tasks})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the plan of a text. Raises FormatError if it is none of this class, or damaged."""
        try:
            plan = json.loads(text)
            if (plan["format"], plan["work"]) != (FORMAT, cls.WORK):
                raise FormatError(
                    f"not a plan of this version to {cls.WORK}, but {plan['format']!a:.40} to {plan['work']!a:.40}"
                )
            options = {name: plan[name] for name in cls._option_names()}
            options |= {name: without_zero(of_utf8(options[name])) for name in cls.PATHS}
            made = cls.of(without_zero(of_utf8(str(plan["target"]))), plan["tasks"], **options)
            intact = made.fingerprint == plan["fingerprint"]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            if isinstance(error, FormatError):
                raise
            raise FormatError(f"not a plan to {cls.WORK}, or a damaged one ({error!a:.80})") from error
        if not intact:
            raise FormatError("a damaged plan: its fingerprint differs; make a new one")
        return made

    @classmethod
    def load(cls, target: PathLike) -> Self:
        """Return the plan that was made for a target and that is not committed yet.

        Raises:
            SourceNotFoundError: there is none. FormatError: it is damaged. UsageError, ReadError: it cannot be read.

        """
        return cls.from_json(place_of(absolute_target(target)).plan())

    # ------------------------------------------------------------ the end

    def results(self) -> list[PartResult | None]:
        """Return the result of each task that has run, on whichever machine. Raises ReadError."""
        return [task.result() for task in self.tasks]

    def commit(self, results: Iterable[PartResult] | None = None) -> list[PartResult]:
        """Let the target appear with all parts, at once, and remove what the plan needed.

        Args:
            results: of all tasks, in any order; None: those that the tasks left beside the target.

        Returns:
            The results, by part.

        Raises:
            UsageError: a part is missing; the message names it. The target exists, or the plan was committed already.
            WriteError: it could not be written; or another process is writing the parts.

        """
        with place_of(self.target).only_driver():
            return self.put_in_place(results)

    def put_in_place(self, results: Iterable[PartResult] | None = None) -> list[PartResult]:
        """As ``commit``, for a process that holds the lock of the target."""
        folder = place_of(self.target)
        sizes = folder.sizes(self.fingerprint)
        if results is None:
            found = {task.number: task.result() for task in self.tasks}
        else:
            found = {result.part: result for result in results}
        paths = [folder.part(*part) for part in self.parts]
        names = list(map(os.path.basename, paths))
        done = [
            refuse_incomplete(task, found.get(task.number), sizes.get(name), path)
            for task, name, path in zip(self.tasks, names, paths, strict=True)
        ]
        self._refuse_together(paths)
        manifest = manifest_of(self.fingerprint, [asdict(result) for result in done])
        final = [task.name for task in self.tasks]
        folder.put_in_place(zip(names, final, strict=True), self.fingerprint, manifest)
        return done

    def _refuse_together(self, paths: Sequence[str]) -> None:  # noqa: B027 - most plans have nothing to refuse
        """Raise UsageError if complete parts cannot be a set. paths: where they are."""

    def abort(self) -> None:
        """Remove all that was written. Does nothing if the plan is not there any more. Tasks that still run, fail.

        Raises:
            WriteError: something cannot be removed; or another process is writing the parts.

        """
        folder = place_of(self.target)
        with folder.only_driver():
            folder.remove_plan(self.fingerprint)


def manifest_of(fingerprint: str, parts: Sequence[dict[str, Any]]) -> str:
    """Return what a store keeps beside the parts of a plan: the fields of the result of each."""
    return json.dumps({"format": MANIFEST, "fingerprint": fingerprint, "parts": parts})


def engine_plan() -> str:
    """Return the plan, as text, of a job whose tasks an engine has."""
    return json.dumps({"format": FORMAT, "work": ENGINE_WORK})


def work_of(text: str) -> str:
    """Return what a plan as text is for, its ``WORK``, or "" if the text is no plan."""
    try:
        plan = json.loads(text)
        return str(plan["work"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""


def _hash(values: object) -> str:
    return hashlib.blake2b(json.dumps(values).encode("ascii"), digest_size=16).hexdigest()
