"""fffs: one file for millions of small ones. Verified batched reads of FFRecord files, packed folders, and a mount.

Reading records: ``FileReader``. Writing them: ``FileWriter``. A folder in one file: ``pack_folder``,
    ``PackedFolder``, ``unpack``.
Mounting: ``fffs.mount`` (needs ``pip install 'fffs[mount]'``) or ``fffs mount`` on the command line.
"""

from __future__ import annotations

from fffs import errors
from fffs.compat import checkFsAlign, install_as_ffrecord
from fffs.formats.ffrecord import LegacyFileWarning
from fffs.layouts import load_source
from fffs.pack import pack_folder
from fffs.packed_folder import PackedFolder
from fffs.reader import FileReader
from fffs.unpack import unpack
from fffs.version import __version__
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
