"""Replaces ``ffrecord`` and ``granular``: provides their module names, so that code and pickles find this package."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any, Final

import fffs.utils as utils
from fffs.base.as_ffrecord import STANDIN
from fffs.base.importing import importing
from fffs.base.paths import PathLike
from fffs.packed_folder import PackedFolder
from fffs.packing.pack import pack_folder
from fffs.reader import FileReader
from fffs.version import __version__
from fffs.writer import FileWriter

GRANULAR_STANDIN: Final = os.path.join(STANDIN, "as_granular")
"""The folder in which spawned processes find ``granular``: not that of ffrecord, as each is asked for alone."""


def checkFsAlign(path: PathLike) -> bool:  # noqa: N802 - ffrecord's name
    """Return whether reads from a path must be aligned. Always False: the engine needs no alignment. Raises OSError.

    Examples:
        >>> fffs.checkFsAlign("train.ffr")
        False

    """
    os.stat(path)
    return False


def install_as_ffrecord() -> None:
    """Make ``import ffrecord`` and its submodules import this package, here and in ``multiprocessing`` children.

    Call it before anything imports ffrecord. Pickles that refer to ``ffrecord.fileio.FileReader`` can then be loaded,
    too. ``ffrecord.torch`` is ``fffs.torch``, imported on first use. Checksum errors have ffrecord's text from then on.

    Example: ``docs/migrating.md``.
    """
    attributes = (FileReader, FileWriter, PackedFolder, pack_folder, checkFsAlign)
    _install(
        "ffrecord",
        {attribute.__name__: attribute for attribute in attributes} | {"__version__": __version__},
        {
            "fileio": _module("ffrecord.fileio", FileReader=FileReader, FileWriter=FileWriter),
            "package": _module("ffrecord.package", PackedFolder=PackedFolder, pack_folder=pack_folder),
            "utils": utils,
        },
        STANDIN,
    )
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def install_as_granular() -> None:
    """Make ``import granular`` and its submodules import this package, here and in ``multiprocessing`` children.

    Call it before anything imports granular. Readers, writers and ``sources`` have the arguments of granular 0.24, and
    write and read its files; there is no ``Loader`` (``fffs.torch.DataLoader`` is one). The API of granular 0.6 is that
    of ``fffs.granular``.

    Example: ``docs/migrating.md``.
    """
    with importing:
        from fffs.granular import exact_codecs, granular_readers, resuming_writers, sample_sources
        from fffs.granular.buffer_file import SharedBuffer
    bag = {"BagReader": granular_readers.StoredBagReader, "BagWriter": resuming_writers.ResumingBagWriter}
    dataset = {
        "DatasetReader": granular_readers.StoredDatasetReader,
        "DatasetWriter": resuming_writers.ResumingDatasetWriter,
    }
    sharded = {
        "ShardedDatasetReader": granular_readers.StoredShardedReader,
        "ShardedDatasetWriter": resuming_writers.ResumingShardedWriter,
    }
    formats = {"encoders": exact_codecs.encoders, "decoders": exact_codecs.decoders}
    _install(
        "granular",
        {**bag, **dataset, **sharded, **formats, "__getattr__": _lacking},
        {
            "bag": _module("granular.bag", **bag, SharedBuffer=SharedBuffer),
            "dataset": _module("granular.dataset", **dataset),
            "sharded": _module("granular.sharded", **sharded),
            "formats": _module("granular.formats", **formats),
            "sources": sample_sources,
        },
        GRANULAR_STANDIN,
    )


def _lacking(name: str) -> Any:
    more = "; use fffs.torch.DataLoader" if name == "Loader" else ""
    raise AttributeError(f"fffs has no granular.{name}{more}")


def _install(
    name: str, attributes: Mapping[str, Any], submodules: Mapping[str, types.ModuleType], standin: str
) -> None:
    """Provide a package. standin: the folder with a package of that name, which spawned processes import."""
    package = types.ModuleType(name, "fffs, under the name of the library that it replaces.")
    package.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)  # for find_spec
    package.__path__ = []  # a package, so that its submodules can be imported
    vars(package).update(attributes)
    vars(package).update(submodules)
    sys.modules.update({name: package, **{f"{name}.{key}": module for key, module in submodules.items()}})
    if standin not in sys.path:
        sys.path.insert(0, standin)  # spawned processes inherit only the path


def _module(name: str, **attributes: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    for attribute, value in attributes.items():
        setattr(module, attribute, value)
    return module


class _Finder(importlib.abc.MetaPathFinder):
    """Finds ``ffrecord.torch`` and its submodules when they are imported, because importing torch takes seconds."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "ffrecord.torch" and not name.startswith("ffrecord.torch."):
            return None
        return importlib.machinery.ModuleSpec(name, _Loader(), is_package=name == "ffrecord.torch")


class _Loader(importlib.abc.Loader):
    """Loads a module of fffs under ffrecord's name. It is the same object, so its classes are the same, too."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        ours = importlib.import_module("fffs" + module.__name__.removeprefix("ffrecord"))
        sys.modules[module.__name__] = ours  # import returns the module that it finds here afterwards
