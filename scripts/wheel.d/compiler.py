"""The compiler: Zig's clang, which links against the symbols that an old glibc has, for this or another processor."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import ziglang

GLIBC = "2.28"
"""The oldest glibc that the wheels run with: the first that has statx(2). It gives them the tag manylinux_2_28."""

# Zig tells clang of every feature whether the processor has it. So a function that is compiled for sse4.2 or avx512f,
# and chosen at run time, lacks what these imply otherwise. Both features change nothing in other functions.
PROCESSORS = {"x86_64": "x86_64+crc32+evex512", "aarch64": "generic"}


@dataclass(frozen=True)
class Compiler:
    """Programs that compile for ``processor``."""

    processor: str
    cc: Path
    ar: Path

    def environment(self, libraries: Path) -> dict[str, str]:
        """Return the variables that make setuptools use this compiler, and the static libraries in a folder."""
        exports = libraries / "exports"
        exports.write_text("{ global: PyInit_*; local: *; };\n")
        return {
            **os.environ,
            "CC": str(self.cc),
            "CFLAGS": f"-I{libraries / 'include'} -g0",
            # Another copy of a library in the process must not take the place of this one.
            "LDFLAGS": f"-L{libraries / 'lib'} -Wl,--version-script={exports}",
            # Python's own command may have paths of the machine where Python was built.
            "LDSHARED": f"{self.cc} -shared",
            # Setuptools takes the tag of the wheel from it.
            "_PYTHON_HOST_PLATFORM": f"linux-{self.processor}",
        }


def make_compiler(processor: str, folder: Path) -> Compiler:
    """Write the programs of a compiler into a folder. Configure scripts want each to be one word."""
    zig = Path(ziglang.__file__).parent / "zig"
    programs = {"cc": f"cc -target {processor}-linux-gnu.{GLIBC} -mcpu={PROCESSORS[processor]}", "ar": "ar"}
    for name, arguments in programs.items():
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec "{zig}" {arguments} "$@"\n')
        path.chmod(0o755)
    return Compiler(processor, folder / "cc", folder / "ar")


def run(*command: object, folder: Path | None = None, environment: dict[str, str] | None = None) -> str:
    """Run a command and return its output; show its end only if the command fails."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = "\n".join(done.stdout.splitlines()[-5:] + done.stderr.splitlines()[-25:])
        raise SystemExit(f"{said}\nwheel: failed: {' '.join(words)}")
    return done.stdout
