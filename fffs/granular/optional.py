"""Optional libraries: imported when a file needs them, with a clear message if one is not installed."""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any

from fffs.base.importing import importing
from fffs.errors import UsageError

ZSTD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
PACKAGES = {"msgpack": "msgpack", "PIL.Image": "pillow", "backports.zstd": "backports.zstd"}


@functools.cache
def library(name: str, what: str) -> Any:
    """Import a module. what: what needs it, for the message.

    Raises:
        UsageError: the module is not installed.

    """
    try:
        with importing:
            return importlib.import_module(name)
    except ImportError:
        package = PACKAGES.get(name, name)
        raise UsageError(
            f"{what} needs {package}, which is not installed: pip install 'fffs[granular]' (or {package} alone)"
        ) from None
