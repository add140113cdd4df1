"""Standing in for ``ffrecord``: its module names, so that code and pickles that name them find this package."""

from __future__ import annotations

import os
import sys
import types
from typing import Any


def checkFsAlign(path: str | bytes | os.PathLike[Any]) -> bool:  # noqa: N802 - ffrecord's name
    """Whether a path is on a file system that asks for aligned reads. Never: the engine needs no alignment."""
    os.stat(path)
    return False


def install_as_ffrecord() -> None:
    """Make ``import ffrecord`` and its submodules give this package, in this process.

    Call it before anything imports ffrecord. Unpickling of objects that name ``ffrecord.fileio.FileReader`` works
    then, too. ``ffrecord.torch`` is there when torch is installed.
    """
    import fffs

    package = types.ModuleType("ffrecord", "fffs, under the name of the library it stands in for.")
    package.__path__ = []  # a package, so that its submodules can be imported
    modules = {
        "ffrecord": package,
        "ffrecord.fileio": _module("ffrecord.fileio", FileReader=fffs.FileReader, FileWriter=fffs.FileWriter),
        "ffrecord.package": _module("ffrecord.package", PackedFolder=fffs.PackedFolder, pack_folder=fffs.pack_folder),
    }
    for name, module in modules.items():
        for attribute in ("FileReader", "FileWriter", "PackedFolder", "pack_folder", "checkFsAlign", "__version__"):
            setattr(package, attribute, getattr(fffs, attribute))
        if name != "ffrecord":
            setattr(package, name.rpartition(".")[2], module)
    sys.modules.update(modules)


def _module(name: str, **attributes: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    for attribute, value in attributes.items():
        setattr(module, attribute, value)
    return module
