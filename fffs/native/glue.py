"""Generates cffi's C between Python and the functions of ``contract.h``, for normal and for sanitized builds."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path


def write_glue(target: Path) -> None:
    """Write the generated C to a file. An unchanged file keeps its timestamp, so that nothing is recompiled."""
    from cffi import FFI

    ffi = FFI()
    ffi.cdef((Path(__file__).parent / "contract.h").read_text())
    ffi.set_source("fffs.native._native", '#include "fffs.h"')
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / "_native.c"
        ffi.emit_c_code(str(fresh))
        if not target.exists() or target.read_bytes() != fresh.read_bytes():
            shutil.copyfile(fresh, target)


if __name__ == "__main__":
    write_glue(Path(sys.argv[1]))
