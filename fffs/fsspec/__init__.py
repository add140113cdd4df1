"""fffs as a file system of fsspec: ``ffr://PATH::SOURCE`` is a file in a pack, in any other record file, or a data set.

fsspec finds it by itself. Needs ``pip install 'fffs[fsspec]'``. See docs/fsspec.md.
"""

from __future__ import annotations

try:
    import fsspec as _fsspec  # noqa: F401 - imported first, so that a missing fsspec gives the message below
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("fffs.fsspec needs fsspec: pip install 'fffs[fsspec]'", name=error.name) from error

from fffs.fsspec.file_system import FfrFileSystem

__all__ = ["FfrFileSystem"]
