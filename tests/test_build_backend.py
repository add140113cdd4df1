"""What is compiled against is looked at as the sources are compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

NATIVE = Path(__file__).parent.parent / "fffs" / "native"
PROJECT = NATIVE.parent.parent / "pyproject.toml"
CHECK = "import build_backend; print(*build_backend.AS_SOURCES); build_backend.check_headers()"


def check_with(folder: Path, header: str, variable: str = "CFLAGS") -> subprocess.CompletedProcess[str]:
    (folder / "liburing.h").write_text(header)
    environment = {**os.environ, variable: f"-I{folder}", "PYTHONPATH": str(NATIVE)}
    return subprocess.run([sys.executable, "-c", CHECK], env=environment, capture_output=True, text=True, check=False)


def test_a_header_as_of_new_releases_passes(tmp_path: Path) -> None:
    done = check_with(tmp_path, "#include <signal.h>\nint f(const sigset_t *set, struct timespec *time);\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "-std=c11 -D_GNU_SOURCE=1\n"
    text = PROJECT.read_text()
    assert ('"-std=c11"' in text, 'define-macros = [["_GNU_SOURCE", "1"]]' in text) == (True, True)


@pytest.mark.parametrize("variable", ["CFLAGS", "CPPFLAGS"])
@pytest.mark.parametrize("header", ["static inline void f(int *p) { typeof(*p) x = 0; (void)x; }\n", "#error\n"])
def test_a_header_as_of_old_releases_does_not(tmp_path: Path, header: str, variable: str) -> None:
    done = check_with(tmp_path, header, variable)
    assert done.returncode == 1
    assert "fffs: cannot compile against liburing.h: " in done.stderr
    assert "liburing 2.0 or later" in done.stderr
