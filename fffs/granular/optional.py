"""Optional libraries: imported when a file needs them, with a clear message if one is not installed."""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any

from fffs.base.importing import importing
from fffs.errors import UsageError

ZSTD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
# What decoding and encoding images imports as well. PIL.Image.preinit imports the plugins of the usual formats.
_IMAGES = ("PIL.MpoImagePlugin", "PIL.TiffImagePlugin")
PACKAGES = {"msgpack": "msgpack", "PIL.Image": "pillow", "backports.zstd": "backports.zstd"}
_EXTRAS = {"pyarrow": "arrow", "array_record": "array-record"}


@functools.cache
def library(name: str, what: str) -> Any:
    """Import a module, and what it would import at its first use. what: what needs it, for the message.

    Raises:
        UsageError: the module is not installed.

    """
    try:
        with importing:
            module = importlib.import_module(name)
            if name == "PIL.Image":
                module.preinit()
                for plugin in _IMAGES:
                    importlib.import_module(plugin)
            return module
    except ImportError:
        top = name.partition(".")[0]
        package, extra = PACKAGES.get(name, top.replace("_", "-")), _EXTRAS.get(top, "granular")
        raise UsageError(
            f"{what} needs {package}, which is not installed: pip install 'fffs[{extra}]' (or {package} alone)"
        ) from None
