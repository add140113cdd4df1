"""Targets of plans: their names, and what is refused before any work."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from fffs.base.numbers import is_within
from fffs.base.paths import PathLike, absolute_path, named
from fffs.cluster.place_of import place_of
from fffs.cluster.plan_place import part_stem
from fffs.errors import SourceNotFoundError, UsageError
from fffs.files.targets import without_dots
from fffs.objects.fsspec_url import is_fsspec_url
from fffs.objects.names import is_url, parse_url, shown

PARTS_MAX: Final = 4096
NAME_MAX: Final = 255  # bytes


def absolute_target(target: PathLike) -> str:
    """Return a target as plans name it: by its absolute path without dots, or its URL without a slash at the end.

    Raises UsageError if it is in a place where no parts can be written.
    """
    name = named(target, "the target")
    if is_fsspec_url(name) or (is_url(name) and parse_url(name).is_web):
        raise UsageError(f"{shown(name)}: parts can only be written to a local folder, or to s3://, gs:// or az://")
    if is_url(name):
        return parse_url(name).url.rstrip("/")
    return os.fsdecode(without_dots(os.fsencode(absolute_path(name))))


def refuse_parts(target: str, parts: int, name_of: Callable[[str, int, int], str]) -> None:
    """Raise UsageError, WriteError and those of stores if a target, as ``absolute_target`` returns it, cannot be made.

    parts: how many are asked for. name_of: returns the name of a part.
    """
    if not is_within(parts, PARTS_MAX):
        raise UsageError(f"{shown(target)}: the number of parts must be from 1 to {PARTS_MAX}, not {parts!r}")
    if len(os.fsencode(name_of(part_stem(target), 0, parts))) > NAME_MAX:
        raise UsageError(f"{shown(target)}: this name is too long for the names of parts; choose a shorter one")
    place_of(target).refuse_content()


def refuse_inside(folder: str, target: str) -> None:
    """Raise UsageError if the target lies inside a folder that is read. Both are absolute paths or URLs."""
    if is_url(folder) != is_url(target):
        return
    if not is_url(folder):
        folder, target_folder = os.path.realpath(folder), os.path.realpath(os.path.dirname(target))
    else:
        target_folder = target
    if f"{target_folder}/".startswith(f"{folder.rstrip('/')}/"):
        raise UsageError(f"{shown(target)}: lies inside the folder that is packed; name a target outside of it")


def remove_plan(target: PathLike) -> None:
    """Remove the plan for a target and all that was written, whatever state it is in.

    Raises:
        SourceNotFoundError: there is none. UsageError: it may be another user's, or is not the place of a plan.
        WriteError: it cannot be removed, or another process is writing the parts.

    """
    folder = place_of(absolute_target(target))
    with folder.only_driver():
        if not folder.remove():
            raise SourceNotFoundError(f"{shown(folder.target)}: there is no plan for it (no {folder.path})")
