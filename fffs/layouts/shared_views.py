"""Views that the parts of a program share: a source is opened once, and again when its files are not the current ones.

Libraries that know names only open a source for each file that they read from it.
"""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from fffs.base.paths import PathLike, named
from fffs.base.withblock import closed_on_error
from fffs.errors import AccessError, FffsError, SourceNotFoundError
from fffs.files.file import File
from fffs.files.fsspec_urls import open_path
from fffs.formats.sources import expand_sources
from fffs.layouts.load import load_files, load_source
from fffs.layouts.view import TreeView
from fffs.objects.names import absolute, is_url, shown

KEPT: Final = 4
"""Views that stay open although nothing uses them."""

ASKED: Final = 32  # files that are looked at together

_LOCAL: Final = ("file", "local")
_OWN: Final = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "az": "az", "http": "http", "https": "https"}


@dataclass(frozen=True)
class OpenSource:
    """What is opened, and how. Can be pickled.

    ``names``: absolute names; with ``protocol``, paths of the file system of fsspec that it names.
    """

    names: tuple[str, ...]
    protocol: str | None
    options: Any = field(repr=False)  # may have passwords
    check_data: bool
    format: str | None
    suffix: str

    @classmethod
    def of(
        cls,
        fo: PathLike | Sequence[PathLike],
        protocol: str | None,
        options: dict[str, Any] | None,
        check_data: bool,
        format: str | None,
        suffix: str,
    ) -> OpenSource:
        """Return what the arguments of a chain of fsspec name."""
        given = [fo] if isinstance(fo, (str, bytes, os.PathLike)) else list(fo)
        names = [named(name, "a source") for name in given]
        foreign = protocol is not None and protocol not in _LOCAL and (bool(options) or protocol not in _OWN)
        if protocol in _OWN and not foreign:
            names = [name if is_url(name) else f"{_OWN[protocol]}://{name}" for name in names]
        if not foreign:
            names = [absolute(name) for name in names]
            return cls(tuple(names), None, None, check_data, format, suffix)
        return cls(tuple(names), protocol, options, check_data, format, suffix)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments that name this source again."""
        return {
            "fo": list(self.names),
            "target_protocol": self.protocol,
            "target_options": self.options,
            "check_data": self.check_data,
            "format": self.format,
            "suffix": self.suffix,
        }

    @property
    def shown(self) -> str:
        """The name for messages."""
        name = self.names[0] if self.names else "no source"
        return f"{self.protocol}://{name.lstrip('/')}" if self.protocol else shown(name)

    def load(self) -> TreeView:
        """Open it. Raises as ``load_source`` and ``FsspecFile``."""
        if self.protocol is not None:
            files = list[File]()
            with closed_on_error(files):
                for name in self.names:
                    files.append(open_path(self.protocol, self.options or {}, name, self._shown_of(name)))
            return load_files(files, self.check_data, self.format)
        try:
            return load_source(self.names, self.suffix, self.check_data, self.format)
        except SourceNotFoundError as error:
            missing = error
        # A chain of fsspec has lost the slash at the end of a folder's name.
        if len(self.names) == 1 and is_url(self.names[0]) and not self.names[0].endswith("/"):
            with contextlib.suppress(SourceNotFoundError, AccessError):
                return load_source([self.names[0] + "/"], self.suffix, self.check_data, self.format)
        raise missing

    def _shown_of(self, name: str) -> str:
        return f"{self.protocol}://{name.lstrip('/')}"

    def files(self) -> list[str]:
        """Return the files that it consists of now, as far as names alone tell."""
        if self.protocol is None:
            with contextlib.suppress(FffsError):
                return expand_sources(list(self.names))
        return list(self.names)

    def key(self) -> str:
        """Return what tells it from other sources."""
        return repr((self.files(), self.protocol, self.options, self.check_data, self.format, self.suffix))

    def forget(self) -> None:
        """Do not keep its view open any longer."""
        _views.pop(self.key(), None)


# No lock, which a child of fork could find locked: each step is a single call into C. Two threads may open a source at
# the same time; one of the views is kept.
_views: OrderedDict[str, TreeView] = OrderedDict()


def open_view(source: OpenSource) -> TreeView:
    """Return a view of the current files of a source, which others may use, too. It closes when nothing refers to it.

    Raises as ``OpenSource.load``.
    """
    key = source.key()
    view = _views.get(key)
    if view is None or view.store.closed or _is_outdated(view):
        view = source.load()
    _views[key] = view
    with contextlib.suppress(KeyError):
        _views.move_to_end(key)
        while len(_views) > KEPT:
            _views.popitem(last=False)
    return view


def _is_outdated(view: TreeView) -> bool:
    files = [source.file for source in view.store.files]
    if len(files) == 1 or all(file.descriptor >= 0 for file in files):
        return any(file.is_outdated() for file in files)
    with ThreadPoolExecutor(min(ASKED, len(files))) as pool:
        return any(pool.map(lambda file: file.is_outdated(), files))
