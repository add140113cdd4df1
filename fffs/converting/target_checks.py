"""Checks of targets: refuses, before anything is written, what cannot be written or must not be replaced."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

from fffs.converting.request import Request, Result
from fffs.converting.source_files import Sources
from fffs.errors import UsageError
from fffs.files.atomic_folder import refuse_content
from fffs.files.sidecar_names import SIDECARS
from fffs.files.targets import refuse_file, refuse_folder, without_dots
from fffs.formats.new_bag import no_appenders
from fffs.objects.names import is_url
from fffs.objects.new_object import object_exists
from fffs.packing.protect import refuse_verity


class TargetRules(Protocol):
    """What a format says about the names of new files; see ``Format``."""

    @property
    def title(self) -> str:
        """What people call the format."""

    @property
    def refuse_target(self) -> Callable[[str, str], None]:
        """See ``Format``."""

    @property
    def beside(self) -> Callable[[str, str], tuple[str, ...]]:
        """See ``Format``."""

    @property
    def sidecars(self) -> Callable[[str], tuple[str, ...]]:
        """See ``Format``."""


def refuse_target(request: Request, result: Result, rules: TargetRules | None, sources: Sources) -> tuple[str, ...]:
    """Return the files that are replaced. Raises UsageError if the target cannot be written, or has a wrong name."""
    target = request.target
    if is_url(target):
        _refuse_object(request, result, rules, sources)
        return ()
    sources.refuse_inside(target)
    if request.split or result is Result.DATA_SET:
        refuse_content(target)  # even with --force: an option must not delete a folder of files
        refuse_folder(without_dots(os.fsencode(target)), target)
        return ()
    assert rules is not None
    names = [target, *rules.beside(target, request.bag_layout)]
    for name in names:
        if os.path.isdir(name):
            raise UsageError(f"{name}: already exists")
        refuse_file(name)
    replaced = tuple(name for name in names if os.path.lexists(name))
    for name in replaced:
        if not request.force:
            raise UsageError(f"{name}: already exists; --force replaces it")
        sources.refuse(name)
    for name in filter(os.path.lexists, (target + ending for ending in SIDECARS)):  # they do not outlive their file
        sources.refuse(name)
        if not request.force:
            raise UsageError(f"{name}: already exists, and belongs to another {target}; --force removes it")
    if request.verity:
        refuse_verity(target)
    with no_appenders(replaced):  # checked first: refuse_target would ask to remove the table of a Bag that grows
        rules.refuse_target(target, request.bag_layout)
    return replaced


def _refuse_object(request: Request, result: Result, rules: TargetRules | None, sources: Sources) -> None:
    """Raise UsageError if the target, a URL, cannot be written."""
    target = request.target
    sources.refuse(target)
    sources.refuse_inside(target)
    if request.split or result is Result.DATA_SET:
        raise UsageError(f"{target}: a store cannot put several objects in place together; write a local folder")
    assert rules is not None
    if rules.beside(target, request.bag_layout):
        raise UsageError(f"{target}: {rules.title}s of layout {request.bag_layout} are two files; write layout v1")
    rules.refuse_target(target, request.bag_layout)
    if request.verify:
        raise UsageError(
            f"{target}: an object cannot be read before it is in place; omit --verify, then use fffs verify"
        )
    if request.verity:
        refuse_verity(target)
    for name in rules.sidecars(target):
        if object_exists(name):
            raise UsageError(f"{target}: remove {name} first: readers would take it for a part of the new object")
    if not request.force and object_exists(target):
        raise UsageError(f"{target}: already exists; --force replaces it")
