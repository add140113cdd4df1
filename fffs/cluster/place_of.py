"""place_of: the place of the plan for a target, which is local or in a store."""

from __future__ import annotations

from fffs.cluster.plan_folder import PlanFolder
from fffs.cluster.plan_objects import PlanObjects
from fffs.cluster.plan_place import PlanPlace
from fffs.objects.names import is_url


def place_of(target: str) -> PlanPlace:
    """Return the place. target: the folder that is made, by an absolute path or its URL."""
    return PlanObjects(target) if is_url(target) else PlanFolder(target)
