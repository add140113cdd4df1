"""Opens and lists what URLs and chains of fsspec name. Where one has a cache of whole files, a copy of ours is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fffs.errors import FffsError, UsageError
from fffs.files.fsspec_chains import Level, connection_to, levels_below, levels_of, within
from fffs.files.fsspec_connection import Connection
from fffs.files.fsspec_copy import FsspecCopy
from fffs.files.fsspec_file import FsspecFile
from fffs.files.fsspec_systems import (
    BLOCK_CACHES,
    configured,
    failure_of,
    import_fsspec,
    is_plain,
    no_block_cache,
    secrets_in,
)
from fffs.files.fsspec_within import FsspecCopyWithin, FsspecWithin


def open_url(url: str, name: str) -> FsspecFile:
    """Open a file by its URL. name: for messages. Raises as ``FsspecFile``."""
    return _open(levels_of(url, name), name, ())


def open_path(protocol: str, options: dict[str, Any], path: str, name: str) -> FsspecFile:
    """Open a file of the file system with a protocol and options, as those of a chain are. Raises as ``FsspecFile``."""
    levels = levels_below(Level(protocol, path, options))
    if not BLOCK_CACHES.isdisjoint(level.protocol for level in levels):
        raise no_block_cache(name)
    return _open(levels, name, secrets_in(options))


def list_url(url: str, name: str) -> list[str]:
    """Return the names of the files in a folder, by its URL. Raises as ``open_url``."""
    levels = levels_of(url, name)
    if not any(level.is_cache for level in levels):
        return _list(connection_to(levels, name), name)
    outer, source, key = _divide(levels, name)
    if not outer:
        return _list(source, name)
    with FsspecCopy(source, name, (), key) as copy:
        return _list(within(outer, lambda: copy, levels[_last_cache(levels)].path, name), name)


def _list(connection: Connection, name: str) -> list[str]:
    try:
        entries = connection.use(_entries)
        return [entry["name"].rstrip("/").rpartition("/")[2] for entry in entries if entry["type"] != "directory"]
    except (FffsError, MemoryError):
        raise
    except Exception as error:
        raise failure_of(error, name) from None


def _entries(fs: Any, path: str) -> list[dict[str, Any]]:
    fs.invalidate_cache(path)
    found: list[dict[str, Any]] = fs.ls(path, detail=True)
    return found


def _open(levels: Sequence[Level], name: str, secrets: Sequence[str]) -> FsspecFile:
    if not any(level.is_cache for level in levels):
        return FsspecFile(connection_to(levels, name), name, secrets)
    outer, source, key = _divide(levels, name)
    copy = FsspecCopy(source, name, secrets, key)
    if not outer:
        return copy
    kind = FsspecCopyWithin if levels[0].is_cache else FsspecWithin
    return kind(outer, copy, levels[_last_cache(levels)].path, name, secrets)


def _divide(levels: Sequence[Level], name: str) -> tuple[list[Level], Connection, str | None]:
    """Return the levels above the last cache, without caches, what connects to what that caches, and a key for it."""
    last = _last_cache(levels)
    outer = [level for level in levels[:last] if not level.is_cache]
    cache = levels[last]
    compression = cache.options.get("compression")
    if compression == "infer":
        compression = import_fsspec(name).utils.infer_compression(cache.path)
    if compression is not None:
        raise UsageError(f"{name}: a {cache.protocol} that decompresses is not supported")
    sources, fs = levels[last + 1 :], cache.options.get("fs")
    if sources:
        return outer, connection_to(sources, name), _key_of(sources, name)
    if fs is None:
        raise UsageError(f"{name}: {cache.protocol} must be followed by what it copies: {cache.protocol}::URL")
    return outer, Connection(lambda: (fs, cache.path)), None


def _key_of(levels: Sequence[Level], name: str) -> str | None:
    """Return what tells a file from all others, or None: its levels, with what fsspec's configuration adds to them."""
    whole = [level._replace(options=configured(level.protocol, level.options, name)) for level in levels]
    return repr(whole) if all(is_plain(level.options) for level in whole) else None


def _last_cache(levels: Sequence[Level]) -> int:
    return max(k for k, level in enumerate(levels) if level.is_cache)
