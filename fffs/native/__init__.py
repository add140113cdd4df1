"""The compiled engine: ``ffi`` and ``lib`` of cffi, tested once when loaded.

``contract.h`` describes the functions and who owns memory. Modules that call ``lib`` do not export it.
"""

from __future__ import annotations

from typing import Any

from fffs.errors import EngineError

try:
    from fffs.native import _native
except ImportError as error:
    raise EngineError(
        f"fffs.native is not built for this Python ({error}); install fffs with pip, or run scripts/setup in a checkout"
    ) from error

ffi: Any = _native.ffi
lib: Any = _native.lib

if lib.fffs_self_test() != 0:
    raise EngineError(
        "libdeflate on this machine computes wrong CRC-32 checksums (known for some builds of 1.20 to 1.22); "
        "install another version of libdeflate"
    )
