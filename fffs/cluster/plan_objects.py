"""PlanObjects: the plan for a target in a store. Its parts are written where they stay, and count when all are there.

Nothing in a store can be renamed at once. So the parts get their names in the target, and ``.fffs-plan/`` beside them
says that they are not complete, until a manifest is there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Final

from fffs.cluster.lease import lease
from fffs.cluster.plan_place import RESULTS, STATE, PlanPlace, part_stem
from fffs.errors import UsageError
from fffs.formats.part_names import MANIFEST, UNFINISHED
from fffs.objects.client import ListedObject, list_entries
from fffs.objects.names import parse_url
from fffs.objects.small import delete_folder, delete_objects, put_object, read_object

_LEASE: Final = f"{UNFINISHED}-driver"


class PlanObjects(PlanPlace):
    """The objects of the plan for one target. Who may write to the bucket may change them."""

    def __init__(self, target: str) -> None:
        """target: the URL of the folder that is made."""
        self.target = target.rstrip("/")
        self._folder = parse_url(f"{self.target}/")
        self.path = f"{self._folder.name}{UNFINISHED}"
        self._place = f"{self.target}/{UNFINISHED}"

    def only_driver(self) -> AbstractContextManager[None]:
        """See ``PlanPlace``."""
        return lease(f"{self.target}/{_LEASE}", self._folder.name)

    def refuse_content(self) -> None:
        """See ``PlanPlace``."""
        names = self._names()
        others = sorted(names.keys() - {UNFINISHED, _LEASE})
        if MANIFEST in names or (others and UNFINISHED not in names):
            raise UsageError(
                f"{self._folder.name}: already exists and is not empty (it has {others[0]}); name another folder"
            )

    def refuse_strange(self) -> None:
        """Do nothing."""

    # ------------------------------------------------------------ objects

    def _names(self) -> dict[str, ListedObject]:
        """Return what is directly in the target."""
        found = list_entries(self._folder, delimiter=True)
        return {entry.key.rstrip("/").rpartition("/")[2]: entry for entry in found}

    def part(self, name: str) -> str:
        """See ``PlanPlace``."""
        return f"{self.target}/{name}"

    def sizes(self) -> dict[str, int]:
        """See ``PlanPlace``."""
        return {name: entry.size for name, entry in self._names().items()}

    def _is_there(self) -> bool:
        return UNFINISHED in self._names()

    def _make(self) -> None:
        pass

    def _has_results(self) -> bool:
        return any(True for _ in list_entries(parse_url(f"{self._place}/{RESULTS}/")))

    def _read(self, name: str) -> bytes | None:
        return read_object(f"{self._place}/{name}")

    def _put(self, name: str, pieces: Iterable[bytes]) -> None:
        put_object(f"{self._place}/{name}", b"".join(pieces))

    def _put_result(self, name: str, data: bytes) -> None:
        self._put(name, [data])

    # ------------------------------------------------------------ the end

    def put_in_place(self, names: list[str], manifest: str) -> None:
        """See ``PlanPlace``. The manifest is written last."""
        put_object(f"{self.target}/{MANIFEST}", manifest.encode("ascii"))
        self._remove_plan()

    def remove(self) -> None:
        """See ``PlanPlace``. What was committed stays."""
        names = self._names()
        if MANIFEST not in names:
            ours = re.compile(rf"{re.escape(part_stem(self.target))}-[0-9]{{5}}-of-[0-9]{{5}}(\..*)?", re.DOTALL)
            delete_objects(self.target + "/", [entry.key for name, entry in names.items() if ours.fullmatch(name)])
        self._remove_plan()

    def _remove_plan(self) -> None:
        delete_objects(self.target + "/", [parse_url(f"{self._place}/{STATE}").key])
        delete_folder(f"{self._place}/")
