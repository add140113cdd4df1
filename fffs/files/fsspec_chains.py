"""Chains of fsspec as levels: the file systems that a URL, or a protocol with options, names above each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fffs.base.importing import importing
from fffs.errors import UsageError
from fffs.files.fsspec_connection import Connection
from fffs.files.fsspec_host import find_host, has_host
from fffs.files.fsspec_host_file import HostFile
from fffs.files.fsspec_systems import FILE_CACHES, WEB, connect, import_fsspec, said_by
from fffs.files.fsspec_web_file import WebFile

if TYPE_CHECKING:
    from fffs.files.fsspec_own import OwnFile


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

        ``ffr`` is not asked for it: it may have several files, and opens them itself. Raises UsageError: the path leads
        out of the folder that ``dir`` shows.
        """
        if self.options.get("target_protocol") is None or self.protocol == "ffr":
            return None
        path, root = self.path, self.options.get("fo")
        if self.protocol == "dir":
            _require_inside(path)
            root = self.options.get("path") or root or ""
            path = f"{root.rstrip('/')}/{path}" if root and path else root or path
        elif not self.is_cache:
            if "fo" not in self.options:
                return None
            path = root or ""
        return Level(self.options["target_protocol"], path, self.options.get("target_options") or {})


def _require_inside(path: str) -> None:
    """Raise UsageError if a path in a folder leads out of it: programs take ``dir`` for a boundary."""
    depth = 0
    for part in path.split("/"):
        depth += -1 if part == ".." else part not in ("", ".")
        if depth < 0:
            raise UsageError(f"dir://{path}: leads out of the folder")


def levels_below(top: Level) -> list[Level]:
    """Return a level and those below it, without ``dir``, of which the level below has the same file."""
    levels = [top]
    while (level := levels[-1].below()) is not None:
        if levels[-1].protocol == "dir":
            levels.pop()
        levels.append(level)
    return levels


def levels_of(url: str, name: str) -> list[Level]:
    """Return the levels of a URL. name: for messages. Raises as ``connect``.

    fsspec divides it: they are in the options of a file system at its top.
    """
    import_fsspec(name)
    with importing:
        from fffs.files.fsspec_own import PROTOCOL
    top, path = connect(f"{PROTOCOL}://::{url}", name)
    return levels_below(Level(PROTOCOL, path, top.storage_options))[1:]


def connection_to(levels: Sequence[Level], name: str) -> Connection:
    """Return what uses the file system of the first level. name: for messages."""
    top, bottom = levels[0], levels[-1]
    if not has_host(bottom.protocol):
        is_archive = len(levels) > 1
        # That of ``data`` is in the URL.
        archive = connection_to(levels[-1:], name) if is_archive and bottom.protocol != "data" else None
        if archive and bottom.protocol in WEB:
            source = archive.anew()
            return within(levels[:-1], lambda: WebFile(source, name), bottom.path, name, archive)
        return Connection(lambda: (_system_of(top, name, is_archive), top.path), archive)
    host = find_host(bottom.protocol, bottom.options, name)
    connection = Connection(lambda: (host, bottom.path))
    if len(levels) == 1:
        return connection
    return within(levels[:-1], lambda: HostFile(host, bottom.path, name), bottom.path, name, connection)


def within(
    outer: Sequence[Level], find: Callable[[], OwnFile], path: str, name: str, archive: Connection | None = None
) -> Connection:
    """Return what uses a file system in a file of fffs. outer: the levels above the file.

    find: returns the file. path: of the file, for its ending. name: for messages. archive: what uses its file system.
    """
    with importing:
        from fffs.files.fsspec_own import PROTOCOL, path_of

    def connect_to() -> tuple[Any, str]:
        file = find()
        target: dict[str, Any] = {"fo": path_of(file, path), "target_protocol": PROTOCOL, "target_options": {}}
        for level in reversed(outer):
            options = {**level.options, **target}
            target = {"fo": level.path, "target_protocol": level.protocol, "target_options": options}
        return _system_of(outer[0]._replace(options=options), name, True), outer[0].path

    return Connection(connect_to, archive)


def _system_of(level: Level, name: str, is_archive: bool) -> Any:
    # An instance that fsspec keeps would keep what it knows of the archive.
    options = {**level.options, "skip_instance_cache": True} if is_archive else level.options
    try:
        return import_fsspec(name).filesystem(level.protocol, **options)
    except (ImportError, ValueError) as error:
        raise UsageError(f"{name}: {said_by(error)}") from None
