"""fffs stores millions of small files in one: verified batched reads of FFRecord files, packed folders, and a mount.

Read records with ``open`` or ``FileReader``, write them with ``FileWriter``. Put a folder into one file with
``pack_folder``, read it with ``PackedFolder`` or ``unpack``. Use other formats with ``convert``. Mount with
``fffs.mount`` (needs ``pip install 'fffs[mount]'``) or ``fffs mount`` on the command line.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fffs import errors
from fffs.base.importing import importing as _importing
from fffs.version import __version__

if TYPE_CHECKING:
    from fffs.cluster.report import JobReport
    from fffs.compat import checkFsAlign, install_as_ffrecord, install_as_granular
    from fffs.converting import convert
    from fffs.converting.convert_plan import ConvertPlan, plan_convert
    from fffs.formats.ffrecord import LegacyFileWarning
    from fffs.layouts import load_source
    from fffs.opening import open
    from fffs.packed_folder import PackedFolder, PackedSamples
    from fffs.packing.dump_plan import DumpPlan, plan_dump
    from fffs.packing.pack import pack_folder
    from fffs.packing.pack_plan import PackPlan, plan_pack
    from fffs.packing.unpack import unpack
    from fffs.packing.verify_plan import VerifyPlan, plan_verify
    from fffs.reader import FileReader
    from fffs.writer import FileWriter

__all__ = [
    "ConvertPlan",
    "DumpPlan",
    "FileReader",
    "FileWriter",
    "JobReport",
    "LegacyFileWarning",
    "PackPlan",
    "PackedFolder",
    "PackedSamples",
    "VerifyPlan",
    "__version__",
    "checkFsAlign",
    "convert",
    "errors",
    "install_as_ffrecord",
    "install_as_granular",
    "load_source",
    "open",
    "pack_folder",
    "plan_convert",
    "plan_dump",
    "plan_pack",
    "plan_verify",
    "unpack",
]

# Imported on first use: commands that read no records (mount, umount, --help) start without numpy and the engine.
_HOMES = {
    "ConvertPlan": "fffs.converting.convert_plan",
    "DumpPlan": "fffs.packing.dump_plan",
    "FileReader": "fffs.reader",
    "FileWriter": "fffs.writer",
    "JobReport": "fffs.cluster.report",
    "LegacyFileWarning": "fffs.formats.ffrecord",
    "PackPlan": "fffs.packing.pack_plan",
    "PackedFolder": "fffs.packed_folder",
    "PackedSamples": "fffs.packed_folder",
    "VerifyPlan": "fffs.packing.verify_plan",
    "checkFsAlign": "fffs.compat",
    "convert": "fffs.converting",
    "install_as_ffrecord": "fffs.compat",
    "install_as_granular": "fffs.compat",
    "load_source": "fffs.layouts",
    "open": "fffs.opening",
    "pack_folder": "fffs.packing.pack",
    "plan_convert": "fffs.converting.convert_plan",
    "plan_dump": "fffs.packing.dump_plan",
    "plan_pack": "fffs.packing.pack_plan",
    "plan_verify": "fffs.packing.verify_plan",
    "unpack": "fffs.packing.unpack",
}

# Submodules that are imported on first access to fffs.name.
_MODULES = ("dask", "granular", "mount", "ofrecord", "ray", "tfrecord", "torch", "utils")


def __getattr__(name: str) -> Any:
    if name not in _MODULES and name not in _HOMES:
        raise AttributeError(f"module 'fffs' has no attribute {name!r}")
    with _importing:
        module = importlib.import_module(_HOMES.get(name) or f"fffs.{name}")
    if name in _MODULES:
        return module
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
