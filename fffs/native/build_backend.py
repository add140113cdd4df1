"""The build backend: setuptools, after the C that cffi generates has been written.

setuptools alone would do if generated C were kept in version control. It is not, so each hook that builds first checks
that the two C libraries can be found, then writes ``_native.c`` from ``contract.h``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from glue import write_glue  # type: ignore[import-not-found] # beside this file, where pip looks
from setuptools import build_meta as _setuptools
from setuptools.build_meta import *  # noqa: F403

GLUE = Path(__file__).parent / "_native.c"
NEEDED = {"libdeflate.h": "deflate", "liburing.h": "uring"}
MISSING = (
    "fffs: cannot compile against {headers}: install a C compiler and the development packages "
    "(Debian/Ubuntu: apt-get install gcc python3-dev libdeflate-dev liburing-dev; "
    "Fedora: dnf install gcc python3-devel libdeflate-devel liburing-devel)"
)


def check_headers() -> None:
    """End the build with one line where a header or its library is missing."""
    compiler = os.environ.get("CC", "cc").split()
    missing = []
    with tempfile.TemporaryDirectory() as folder:
        for header, library in NEEDED.items():
            source = Path(folder) / "probe.c"
            source.write_text(f"#include <{header}>\nint main(void) {{ return 0; }}\n")
            output = str(Path(folder) / "probe")
            command = [*compiler, *os.environ.get("CFLAGS", "").split(), str(source), f"-l{library}", "-o", output]
            try:
                found = subprocess.run(command, capture_output=True, check=False).returncode == 0
            except OSError:
                found = False
            if not found:
                missing.append(header)
    if missing:
        sys.exit(MISSING.format(headers=" and ".join(missing)))


def _prepare() -> None:
    check_headers()
    write_glue(GLUE)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):  # type: ignore[no-untyped-def]
    """PEP 517."""
    _prepare()
    return _setuptools.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):  # type: ignore[no-untyped-def]
    """PEP 660."""
    _prepare()
    return _setuptools.build_editable(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory, config_settings=None):  # type: ignore[no-untyped-def]
    """PEP 517. The generated source is left out (MANIFEST.in), but setuptools wants every named source to exist."""
    write_glue(GLUE)
    return _setuptools.build_sdist(sdist_directory, config_settings)
