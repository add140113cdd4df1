"""Opens and lists what URLs and chains of fsspec name. Where one has a cache of whole files, a copy of ours is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fffs.base.importing import importing
from fffs.errors import UsageError
from fffs.files.fsspec_copy import FsspecCopy
from fffs.files.fsspec_file import FsspecFile
from fffs.files.fsspec_systems import (
    BLOCK_CACHES,
    FILE_CACHES,
    connect,
    import_fsspec,
    list_folder,
    no_block_cache,
    secrets_in,
)

if TYPE_CHECKING:
    from fffs.files.fsspec_within import Level


def open_url(url: str, name: str) -> FsspecFile:
    """Open a file by its URL. name: for messages. Raises as ``FsspecFile``."""
    if not _has_cache(url):
        return FsspecFile(lambda: connect(url, name), name)
    return _open(_levels_of(url, name), name, (), is_url=True)


def open_path(protocol: str, options: dict[str, Any], path: str, name: str) -> FsspecFile:
    """Open a file of the file system with a protocol and options, as those of a chain are. Raises as ``FsspecFile``."""
    import_fsspec(name)
    with importing:
        from fffs.files.fsspec_within import Level, levels_below
    return _open(levels_below(Level(protocol, path, options)), name, secrets_in(options))


def list_url(url: str, name: str) -> list[str]:
    """Return the names of the files in a folder, by its URL. Raises as ``open_url`` and ``list_folder``."""
    if not _has_cache(url):
        return list_folder(lambda: connect(url, name), name)
    outer, copy = _divide(_levels_of(url, name), name, (), is_url=True)
    with importing:
        from fffs.files.fsspec_within import connect_within
    with copy:
        return list_folder(connect_within(outer, copy), name)


def _has_cache(url: str) -> bool:
    return any(part.partition("://")[0] in FILE_CACHES for part in url.split("::"))


def _levels_of(url: str, name: str) -> list[Level]:
    import_fsspec(name)
    with importing:
        from fffs.files.fsspec_within import levels_of
    return levels_of(url, name)


def _open(levels: Sequence[Level], name: str, secrets: Sequence[str], is_url: bool = False) -> FsspecFile:
    if not BLOCK_CACHES.isdisjoint(level.protocol for level in levels):
        raise no_block_cache(name)
    if not any(level.is_cache for level in levels):
        return FsspecFile(levels[0].connect, name, secrets)
    outer, copy = _divide(levels, name, secrets, is_url)
    if not outer:
        return copy
    with importing:
        from fffs.files.fsspec_within import FsspecCopyWithin, FsspecWithin
    return (FsspecCopyWithin if levels[0].is_cache else FsspecWithin)(outer, copy, name, secrets)


def _divide(levels: Sequence[Level], name: str, secrets: Sequence[str], is_url: bool) -> tuple[list[Level], FsspecCopy]:
    """Return the levels above the last cache, without caches, and a copy of what that caches."""
    last = max(k for k, level in enumerate(levels) if level.is_cache)
    outer = [level for level in levels[:last] if not level.is_cache]
    cache = levels[last]
    if cache.options.get("compression") is not None:
        raise UsageError(f"{name}: a {cache.protocol} that decompresses is not supported")
    source, fs = cache.below(), cache.options.get("fs")
    if source is None and fs is None:
        raise UsageError(f"{name}: {cache.protocol} must be followed by what it copies: {cache.protocol}::URL")
    key = repr(source) if is_url else None  # options may be objects, of which a repr tells nothing
    return outer, FsspecCopy((lambda: (fs, cache.path)) if source is None else source.connect, name, secrets, key)
