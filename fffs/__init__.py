"""fffs: one file for millions of small ones. Verified batched reads of FFRecord files, packed folders, and a mount.

Reading records: ``FileReader``. Writing them: ``FileWriter``. A folder in one file: ``pack_folder``, ``PackedFolder``,
``unpack``. Mounting: ``fffs.mount`` (needs ``pip install 'fffs[mount]'``) or ``fffs mount`` on the command line.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fffs import errors
from fffs.version import __version__

if TYPE_CHECKING:
    from fffs.compat import checkFsAlign, install_as_ffrecord
    from fffs.formats.ffrecord import LegacyFileWarning
    from fffs.layouts import load_source
    from fffs.packed_folder import PackedFolder
    from fffs.packing import pack_folder
    from fffs.reader import FileReader
    from fffs.unpacking import unpack
    from fffs.writer import FileWriter

__all__ = [
    "FileReader",
    "FileWriter",
    "LegacyFileWarning",
    "PackedFolder",
    "__version__",
    "checkFsAlign",
    "errors",
    "install_as_ffrecord",
    "load_source",
    "pack_folder",
    "unpack",
]

# Loaded when first asked for: commands that read no records (mount, umount, --help) start without numpy and the engine.
_HOMES = {
    "FileReader": "fffs.reader",
    "FileWriter": "fffs.writer",
    "LegacyFileWarning": "fffs.formats.ffrecord",
    "PackedFolder": "fffs.packed_folder",
    "checkFsAlign": "fffs.compat",
    "install_as_ffrecord": "fffs.compat",
    "load_source": "fffs.layouts",
    "pack_folder": "fffs.packing",
    "unpack": "fffs.unpacking",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fffs' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
