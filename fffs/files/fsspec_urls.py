"""Opens and lists what URLs and chains of fsspec name. Where one has a cache of whole files, a copy of ours is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fffs.base.importing import importing
from fffs.errors import FffsError, UsageError
from fffs.files.fsspec_chains import Level, is_plain, levels_below
from fffs.files.fsspec_connection import Connection, System
from fffs.files.fsspec_copy import FsspecCopy
from fffs.files.fsspec_file import FsspecFile
from fffs.files.fsspec_systems import BLOCK_CACHES, failure_of, import_fsspec, no_block_cache, secrets_in


def open_url(url: str, name: str) -> FsspecFile:
    """Open a file by its URL. name: for messages. Raises as ``FsspecFile``."""
    return _open(_levels_of(url, name), name, ())


def open_path(protocol: str, options: dict[str, Any], path: str, name: str) -> FsspecFile:
    """Open a file of the file system with a protocol and options, as those of a chain are. Raises as ``FsspecFile``."""
    levels = levels_below(Level(protocol, path, options))
    if not BLOCK_CACHES.isdisjoint(level.protocol for level in levels):
        raise no_block_cache(name)
    return _open(levels, name, secrets_in(options))


def list_url(url: str, name: str) -> list[str]:
    """Return the names of the files in a folder, by its URL. Raises as ``open_url``."""
    levels = _levels_of(url, name)
    if not any(level.is_cache for level in levels):
        return _list(levels[0].connection(name), name)
    outer, source, key = _divide(levels, name)
    if not outer:
        return _list(source, name)
    with importing:
        from fffs.files.fsspec_within import connect_within
    with FsspecCopy(source, name, (), key) as copy:
        return _list(connect_within(outer, copy, name), name)


def _list(connection: Connection, name: str) -> list[str]:
    try:
        entries = connection.use(_entries, lambda system: None)
        return [entry["name"].rstrip("/").rpartition("/")[2] for entry in entries if entry["type"] != "directory"]
    except (FffsError, MemoryError):
        raise
    except Exception as error:
        raise failure_of(error, name) from None


def _entries(system: System) -> list[dict[str, Any]]:
    with system.held():
        system.fs.invalidate_cache(system.path)
        found: list[dict[str, Any]] = system.fs.ls(system.path, detail=True)
        return found


def _levels_of(url: str, name: str) -> list[Level]:
    import_fsspec(name)
    with importing:
        from fffs.files.fsspec_within import levels_of
    return levels_of(url, name)


def _open(levels: Sequence[Level], name: str, secrets: Sequence[str]) -> FsspecFile:
    if not any(level.is_cache for level in levels):
        return FsspecFile(levels[0].connection(name), name, secrets)
    outer, source, key = _divide(levels, name)
    copy = FsspecCopy(source, name, secrets, key)
    if not outer:
        return copy
    with importing:
        from fffs.files.fsspec_within import FsspecCopyWithin, FsspecWithin
    return (FsspecCopyWithin if levels[0].is_cache else FsspecWithin)(outer, copy, name, secrets)


def _divide(levels: Sequence[Level], name: str) -> tuple[list[Level], Connection, str | None]:
    """Return the levels above the last cache, without caches, what connects to what that caches, and a key for it."""
    last = max(k for k, level in enumerate(levels) if level.is_cache)
    outer = [level for level in levels[:last] if not level.is_cache]
    while outer and outer[-1].protocol == "dir":  # whose paths are those of the files that are cached
        outer.pop()
    cache = levels[last]
    compression = cache.options.get("compression")
    if compression == "infer":
        compression = import_fsspec(name).utils.infer_compression(cache.path)
    if compression is not None:
        raise UsageError(f"{name}: a {cache.protocol} that decompresses is not supported")
    source, fs = cache.below(), cache.options.get("fs")
    if source is not None:
        return outer, source.connection(name), repr(source) if is_plain(source.options) else None
    if fs is None:
        raise UsageError(f"{name}: {cache.protocol} must be followed by what it copies: {cache.protocol}::URL")
    return outer, Connection(lambda: (fs, cache.path), ()), None
