"""Chains of fsspec as levels: the file systems that a URL, or a protocol with options, names above each other."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from fffs.errors import UsageError
from fffs.files.fsspec_connection import Connection
from fffs.files.fsspec_systems import FILE_CACHES, import_fsspec, said_by

_numbers: Final[Iterator[int]] = itertools.count()


class Level(NamedTuple):
    """A protocol, the path of a file in its file system, and the options of that, with those of the level below."""

    protocol: str
    path: str
    options: dict[str, Any]

    @property
    def is_cache(self) -> bool:
        """Whether it copies whole files of the level below."""
        return self.protocol in FILE_CACHES

    def below(self) -> Level | None:
        """Return the level below, or None: that of the file that an archive is, and of the same file otherwise.

        ``ffr`` is not asked for it: it may have several files, and opens them itself.
        """
        if self.options.get("target_protocol") is None or self.protocol == "ffr":
            return None
        path, root = self.path, self.options.get("fo")
        if self.protocol == "dir":
            path = f"{(self.options.get('path') or root or '').rstrip('/')}/{path}"
        elif not self.is_cache:
            if "fo" not in self.options:
                return None
            path = root or ""
        return Level(self.options["target_protocol"], path, self.options.get("target_options") or {})

    def connection(self, name: str) -> Connection:
        """Return what connects to the file. name: for messages."""

        def find() -> tuple[Any, str]:
            try:
                return import_fsspec(name).filesystem(self.protocol, **self.options), self.path
            except (ImportError, ValueError) as error:
                raise UsageError(f"{name}: {said_by(error)}") from None

        levels = levels_below(self)
        if len(levels) == 1:
            host = f"{self.protocol} {self.options if is_plain(self.options) else next(_numbers)}"
            return Connection(find, [self.protocol], host)
        bottom = levels[-1].connection(name)
        roots = [level.connection(name) for level in levels[1:-1] if level.protocol == "dir"]
        made = Connection(find, {level.protocol for level in levels}, bottom.host, bottom, roots)
        if any(level.protocol != "dir" for level in levels[:-1]):
            made.archive = bottom
        return made


def is_plain(value: Any) -> bool:
    """Return whether a repr tells all of a value."""
    if isinstance(value, dict):
        return all(is_plain(item) for item in (*value.keys(), *value.values()))
    if isinstance(value, (list, tuple)):
        return all(is_plain(item) for item in value)
    return value is None or type(value) in (str, bytes, int, float, bool)


def levels_below(top: Level) -> list[Level]:
    """Return a level and those below it."""
    levels = [top]
    while (level := levels[-1].below()) is not None:
        levels.append(level)
    return levels
