"""What callers and the environment say about caches: where they are, and how large they may be. Imports no numpy.

Environment:
    FFFS_CACHE: ``off``: no cache is read or written; or the folder for what is read of objects. Default: ``objects`` in
        ``fffs`` in the user's cache folder.
    FFFS_CACHE_SIZE: the most bytes of all objects together, as ``20G``, or a share of the free space, as ``30%``.
        Default: half of it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from fffs.base.paths import PathLike, absolute_path, named
from fffs.base.sizes import HALF, Budget, parse_budget
from fffs.errors import UsageError

SWITCH: Final = "FFFS_CACHE"
SIZE: Final = "FFFS_CACHE_SIZE"
OFF: Final = "off"


@dataclass(frozen=True)
class CacheSettings:
    """Where what is read of objects is kept. ``folder``: its path, ``off``, or None for the default. Immutable."""

    folder: str | None = None
    budget: Budget = HALF

    @property
    def is_off(self) -> bool:
        """Whether no cache is read or written."""
        return self.folder == OFF

    @property
    def is_named(self) -> bool:
        """Whether there is a folder by name. Then all readers use it, and not only mounts and torch."""
        return self.folder not in (None, OFF)


_given: Final[ContextVar[tuple[str | None, str | int | None]]] = ContextVar("_given", default=(None, None))


def cache_name(folder: PathLike) -> str:
    """Return ``off``, or the absolute path of the folder for a cache. Raises UsageError."""
    name = named(folder, "a cache folder")
    return OFF if name.lower() == OFF else absolute_path(name)


def cache_options(folder: PathLike | None, size: str | int | None) -> dict[str, Any]:
    """Return the arguments ``cache`` and ``cache_size`` that are not None, as another process can use them.

    Raises:
        UsageError: one is wrong.

    """
    with caching(folder, size):
        options = dict(zip(("cache", "cache_size"), _given.get(), strict=True))
    return {name: value for name, value in options.items() if value is not None}


def cache_settings() -> CacheSettings:
    """Return the settings for what this thread opens: those of ``caching``, or else of the environment.

    Raises:
        UsageError: one is wrong.

    """
    size = _given.get()[1]
    try:
        return CacheSettings(wanted_folder(), _budget(os.environ.get(SIZE) if size is None else size))
    except ValueError as error:
        raise UsageError(f"{SIZE if size is None else 'cache_size'}: {error}") from None


def _budget(size: str | int | None) -> Budget:
    return HALF if size in (None, "") else parse_budget(size)


def wanted_folder() -> str | None:
    """Return the folder as in CacheSettings."""
    folder, variable = _given.get()[0], os.environ.get(SWITCH)
    return folder or (cache_name(variable) if variable else None)


@contextlib.contextmanager
def caching(folder: PathLike | None, size: str | int | None = None) -> Iterator[None]:
    """In the block, let what this thread opens have other settings than the environment's, where they are not None.

    Raises:
        UsageError: one is wrong.

    """
    outer = _given.get()
    token = _given.set((outer[0] if folder is None else cache_name(folder), outer[1] if size is None else size))
    try:
        cache_settings()  # a wrong size is an error here, and not only where a cache is opened
        yield
    finally:
        _given.reset(token)


LISTINGS: Final[ContextVar[dict[tuple[int, int], Any] | None]] = ContextVar("LISTINGS", default=None)
"""What ``cache_space`` knows of folders, by device and inode. None: it keeps nothing."""


@contextlib.contextmanager
def listed_once() -> Iterator[None]:
    """Have the objects that are opened in the block, also by threads with its context, list each folder only once."""
    token = LISTINGS.set({})
    try:
        yield
    finally:
        LISTINGS.reset(token)
