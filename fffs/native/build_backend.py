"""The build backend: setuptools, and before it the generation of C by cffi.

Generated C is not under version control. So each hook that builds first checks that the two C libraries are there, and
then writes ``_native.c`` from ``contract.h``.
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
AS_SOURCES = ("-std=c11", "-D_GNU_SOURCE=1")
"""Options of pyproject.toml. Without the first, headers of liburing before 2.0 pass; without the other, those from 2.6
do not.
"""
VARIABLES = ("CFLAGS", "CPPFLAGS", "LDFLAGS")
"""Variables with options that setuptools gives to the compiler."""
MISSING = (
    "fffs: cannot compile against {headers}: install a C compiler and the development packages, "
    "of liburing 2.0 or later (Debian/Ubuntu: apt-get install gcc python3-dev libdeflate-dev liburing-dev; "
    "Fedora: dnf install gcc python3-devel libdeflate-devel liburing-devel)"
)


def check_headers() -> None:
    """Exit with a one-line message if a header or its library is missing."""
    compiler = os.environ.get("CC", "cc").split()
    missing = []
    with tempfile.TemporaryDirectory() as folder:
        for header, library in NEEDED.items():
            source = Path(folder) / "probe.c"
            source.write_text(f"#include <{header}>\nint main(void) {{ return 0; }}\n")
            output = str(Path(folder) / "probe")
            flags = [flag for name in VARIABLES for flag in os.environ.get(name, "").split()]
            command = [*compiler, *flags, *AS_SOURCES, str(source), f"-l{library}", "-o", output]
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
    """Build a wheel (PEP 517)."""
    _prepare()
    return _setuptools.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):  # type: ignore[no-untyped-def]
    """Build an editable wheel (PEP 660)."""
    _prepare()
    return _setuptools.build_editable(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory, config_settings=None):  # type: ignore[no-untyped-def]
    """Build an sdist (PEP 517). MANIFEST.in leaves the generated source out, but setuptools requires that it exists."""
    write_glue(GLUE)
    return _setuptools.build_sdist(sdist_directory, config_settings)
