"""PlanObjects: the plan for a target in a store. Its parts are written where they stay, and count when all are there.

Nothing in a store can be renamed at once. So the parts get their names in the target, and ``.fffs-plan/`` beside them
says that they are not complete, until a manifest is there.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Final

from fffs.base.part_sets import MANIFEST, UNCOUNTED, UNFINISHED
from fffs.cluster.lease import keep, lease, seconds_left
from fffs.cluster.plan_place import GONE, RESULTS, STATE, OpenPlace, PlanPlace, part_stem, state_ending
from fffs.errors import FffsError, ReadError, UsageError
from fffs.files.atomic_output import AtomicOutput
from fffs.objects.client import ListedObject, list_entries
from fffs.objects.http_settings import deadline
from fffs.objects.locations import has_objects
from fffs.objects.names import parse_url
from fffs.objects.new_object import NewObject, object_exists
from fffs.objects.protocol import Guard
from fffs.objects.small import delete_objects, put_object, read_object

_LEASE: Final = f"{UNFINISHED}-driver"
_REFUSED: Final = 4.0  # seconds within which a store refuses what it would refuse again


class PlanObjects(PlanPlace):
    """The objects of the plan for one target. Who may write to the bucket may change them."""

    is_remote = True

    def __init__(self, target: str) -> None:
        """target: the URL of the folder that is made."""
        self.target = target.rstrip("/")
        self.folder = parse_url(f"{self.target}/")
        self.path = f"{self.folder.name}{UNFINISHED}"

    def only_driver(self) -> AbstractContextManager[None]:
        """See ``PlanPlace``."""
        return lease(f"{self.target}/{_LEASE}", self.folder.name)

    def keep_lock(self) -> None:
        """See ``PlanPlace``."""
        keep(f"{self.target}/{_LEASE}")

    def refuse_content(self) -> None:
        """See ``PlanPlace``."""
        names = self.names()
        others = sorted(names.keys() - {UNFINISHED, _LEASE})
        if UNFINISHED in names or not others:
            others = [MANIFEST] if self.is_in_place() else []
        if others:
            raise UsageError(
                f"{self.folder.name}: already exists and is not empty (it has {others[0]}); name another folder"
            )

    def names(self) -> dict[str, ListedObject]:
        """Return what is directly in the target, without an empty folder that a store keeps of a plan that is gone."""
        found = list_entries(self.folder, delimiter=True)
        names = {entry.key.rstrip("/").rpartition("/")[2]: entry for entry in found}
        if UNFINISHED in names and not has_objects(f"{self.target}/{UNFINISHED}/"):
            del names[UNFINISHED]
        return names

    def is_in_place(self) -> bool:
        """See ``PlanPlace``. The object itself is asked for: a wrong list must not let a set be written to."""
        return object_exists(f"{self.target}/{MANIFEST}")

    def part(self, name: str, mark: str = "") -> str:
        """See ``PlanPlace``."""
        return f"{self.target}/{name}"

    @contextlib.contextmanager
    def _opened(self) -> Iterator[_OpenObjects]:
        yield _OpenObjects(self)

    def _made(self) -> AbstractContextManager[_OpenObjects]:
        return self._opened()

    def remove(self) -> bool:
        """See ``PlanPlace``. What was committed, or is of no plan, stays."""
        names = self.names()
        _OpenObjects(self).remove(names)
        return UNFINISHED in names

    def remove_stray(self, name: str, fingerprint: str) -> None:
        """See ``PlanPlace``. The manifest is there before the plan goes."""
        manifest = read_object(f"{self.target}/{MANIFEST}")
        if manifest is None or fingerprint.encode("ascii") not in manifest:
            delete_objects(f"{self.target}/", [parse_url(self.part(name)).key])


class _OpenObjects(OpenPlace):
    """The objects. Nothing is kept open."""

    def __init__(self, plan: PlanObjects) -> None:
        self._plan, self._target = plan, plan.target
        self._place = f"{plan.target}/{UNFINISHED}"

    def make(self) -> None:
        """Do nothing."""

    def empty(self) -> None:
        """See ``OpenPlace``. What was committed, or is of no plan, stays."""
        self.remove(self._plan.names())

    def remove(self, names: dict[str, ListedObject]) -> None:
        """As ``empty``. names: what is directly in the target."""
        if UNFINISHED not in names:  # a set that was copied there, for example
            return
        self._delete([parse_url(f"{self._place}/{STATE}").key])
        if not self._plan.is_in_place():
            self._delete_parts(self._plan.names())  # a task whose part comes later finds no plan any more
            self._delete([parse_url(self._plan.part(MANIFEST)).key])  # nor does a late commit
        self._delete([entry.key for entry in list_entries(parse_url(f"{self._place}/"))])

    def _delete(self, keys: list[str]) -> None:
        """Delete objects, unless they may be those of another driver, which took the lock, and may have committed.

        A store that is too slow for what is left of the lock is asked again when that has been renewed.

        Raises WriteError, too.
        """
        end = time.monotonic() + deadline()
        while True:
            begin = time.monotonic()
            try:
                return delete_objects(f"{self._target}/", keys, self._seconds)
            except BaseException as error:
                now = time.monotonic()
                is_refused = isinstance(error, FffsError) and now - begin < _REFUSED
                if not is_refused:  # as an interrupt; the request may still be carried out
                    self._plan.keep_lock()
                if is_refused or now > end or not isinstance(error, ReadError):
                    raise

    def _seconds(self) -> float:
        """Return how long a request that needs the lock may take. Raises WriteError: another driver may have it."""
        return min(deadline(), seconds_left(f"{self._target}/{_LEASE}"))

    def read(self, name: str) -> bytes | None:
        """See ``OpenPlace``."""
        return read_object(f"{self._place}/{name}")

    def put(self, name: str, pieces: Iterable[bytes]) -> None:
        """See ``OpenPlace``. Raises WriteError, too, if another driver may have the lock, and have committed."""
        self._seconds()
        put_object(f"{self._place}/{name}", b"".join(pieces))
        self._seconds()

    def put_result(self, name: str, data: bytes) -> None:
        """See ``OpenPlace``. A task has no lock."""
        put_object(f"{self._place}/{name}", data)

    def has_results(self) -> bool:
        """See ``OpenPlace``."""
        return any(True for _ in list_entries(parse_url(f"{self._place}/{RESULTS}/")))

    def sizes(self) -> dict[str, int]:
        """See ``OpenPlace``."""
        return {name: entry.size for name, entry in self._plan.names().items()}

    def _delete_parts(self, names: dict[str, ListedObject], kept: Collection[str] = ()) -> None:
        stem = re.escape(part_stem(self._target))
        ours = re.compile(rf"({stem}(-[0-9]{{5}}-of-[0-9]{{5}}(\..*)?|{UNCOUNTED})|part-[0-9]{{5}})", re.DOTALL)
        self._delete([entry.key for name, entry in names.items() if ours.fullmatch(name) and name not in kept])

    def keep_parts(self, names: Collection[str]) -> None:
        """See ``OpenPlace``. Most parts of an older plan have the names of new ones, which replace them."""
        self._delete_parts(self._plan.names(), names)

    def new_part(self, name: str, mark: str, fingerprint: str) -> AtomicOutput:
        """See ``OpenPlace``. The part has its final name, which an older or a committed plan must not change."""
        state = parse_url(f"{self._place}/{STATE}").key
        return NewObject(self._plan.part(name), Guard(state, state_ending(fingerprint), GONE))

    def put_in_place(self, names: list[tuple[str, str]], manifest: str, fingerprint: str) -> None:
        """See ``OpenPlace``. The parts have their names already; the manifest is written last.

        A process that was suspended finds a plan of another driver afterwards, perhaps of the same source, or none, or
        not all parts, or no manifest. Whoever removes a plan looks for the manifest after the state is gone. If there
        is none, the parts are removed, and then a manifest that came meanwhile, before another state is made. So if the
        state is there after the manifest, and the manifest after the state, the parts stay.
        """
        url, data = self._plan.part(MANIFEST), manifest.encode("ascii")
        with self.new_part(MANIFEST, "", fingerprint) as output:
            with output.raw() as stream:
                stream.write(data)
            there = read_object(url)
            if there is not None and fingerprint.encode("ascii") not in there:
                other = f"already exists: {MANIFEST} is of another set; name another folder"
                raise UsageError(f"{self._target}: {other if self._plan.fingerprint() == fingerprint else GONE}")
            output.commit()
        found, sizes = self._plan.fingerprint(), self.sizes()
        is_complete = all(name in sizes for name, _ in names)
        is_there = read_object(url) == data
        if found == fingerprint and is_complete and is_there:
            return
        # Without a plan, another driver may have committed the same parts.
        if is_there and not (found is None and is_complete):
            delete_objects(url, [parse_url(url).key])
        raise UsageError(f"{self._target}: {GONE}")
