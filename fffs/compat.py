"""Replaces ``ffrecord``: provides its module names, so that code and pickles that refer to them find this package."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
import types
from collections.abc import Sequence
from typing import Any

import fffs.utils as utils
from fffs.base.as_ffrecord import STANDIN
from fffs.base.paths import PathLike
from fffs.packed_folder import PackedFolder
from fffs.packing.pack import pack_folder
from fffs.reader import FileReader
from fffs.version import __version__
from fffs.writer import FileWriter


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
    package = types.ModuleType("ffrecord", "fffs, under the name of the library that it replaces.")
    package.__spec__ = importlib.machinery.ModuleSpec("ffrecord", None, is_package=True)  # for find_spec
    package.__path__ = []  # a package, so that its submodules can be imported
    modules = {
        "ffrecord": package,
        "ffrecord.fileio": _module("ffrecord.fileio", FileReader=FileReader, FileWriter=FileWriter),
        "ffrecord.package": _module("ffrecord.package", PackedFolder=PackedFolder, pack_folder=pack_folder),
        "ffrecord.utils": utils,
    }
    for attribute in (FileReader, FileWriter, PackedFolder, pack_folder, checkFsAlign):
        setattr(package, attribute.__name__, attribute)
    package.__version__ = __version__  # type: ignore[attr-defined]
    for name, module in modules.items():
        if name != "ffrecord":
            setattr(package, name.rpartition(".")[2], module)
    sys.modules.update(modules)
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    if STANDIN not in sys.path:
        sys.path.insert(0, STANDIN)  # spawned processes inherit only the path


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
